//! The supervisor of the shards: it watches the running group, kills the whole group when one rank
//! is lost, and starts the next group.
//!
//! A group is lost when a connection or a process ends, when a shard reports a fault or sends an
//! unexpected message, when a shard does not answer pings, which it does even while it computes,
//! and when a step takes too long. The reaction is always the same: the group is killed and another
//! one replaces it.
//!
//! Time in which this process is suspended counts for no timeout, because the shards may have been
//! suspended with it.

mod failure;
mod watched_group;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_proto::{Step, to_shard};
use tokio::time::{Instant, sleep_until};

use self::watched_group::WatchedGroup;
use super::baseline::{GroupAnnouncement, GroupBaseline};
use super::group::{ShardGroup, StartError};
use super::kept_adapters::KeptAdapter;
use super::loss::GroupLoss;

pub(super) use self::failure::GroupFailure;
pub(super) use self::watched_group::{ShardTimeouts, SupervisorEvent};

/// Starts a group. The argument tells what the group must have in common with the first one, if
/// there was one.
pub(super) type GroupFactory =
    Box<dyn FnMut(Option<GroupBaseline>) -> BoxFuture<'static, Result<ShardGroup, StartError>> + Send>;

/// The supervisor. See the [module](self).
pub(super) struct Supervisor {
    start_group: GroupFactory,
    timeouts: ShardTimeouts,
    baseline: GroupBaseline,
    state: GroupState,
}

enum GroupState {
    Running(Box<WatchedGroup>),
    /// The group is being killed. The future returns the explanation of the loss.
    Ending(BoxFuture<'static, GroupLoss>),
    /// There is no group. The next one starts at this time.
    Paused(Instant),
    Starting(BoxFuture<'static, Result<(ShardGroup, GroupAnnouncement), GroupLoss>>),
}

impl Supervisor {
    /// Supervises the first group, which has announced that it is ready.
    pub(super) fn new(
        start_group: GroupFactory,
        group: ShardGroup,
        timeouts: ShardTimeouts,
        announcement: &GroupAnnouncement,
    ) -> Self {
        let watched = WatchedGroup::new(group, timeouts, &announcement.ready);
        let baseline = GroupBaseline::new(announcement);
        Supervisor { start_group, timeouts, baseline, state: GroupState::Running(Box::new(watched)) }
    }

    /// Whether steps can be sent.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, GroupState::Running(_))
    }

    /// Sends a step to all ranks. Without a running group the step is lost.
    pub(super) fn send(&mut self, step: Step) {
        if let GroupState::Running(watched) = &mut self.state {
            watched.send(step);
        }
    }

    /// Sends a message other than a step to all ranks. Without a running group it is lost.
    pub(super) fn send_message(&self, message: to_shard::Message) {
        if let GroupState::Running(watched) = &self.state {
            watched.send_message(message);
        }
    }

    /// Sets the adapters that the next group loads before it is ready.
    pub(super) fn keep_adapters(&mut self, adapters: &[KeptAdapter]) {
        self.baseline.adapters = adapters.to_vec();
    }

    /// Returns the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> SupervisorEvent {
        loop {
            match &mut self.state {
                GroupState::Running(watched) => match watched.next().await {
                    Ok(event) => return event,
                    Err(failure) => {
                        self.end_group(failure);
                        return SupervisorEvent::Lost;
                    }
                },
                GroupState::Ending(ending) => {
                    let loss = ending.await;
                    self.pause(Duration::ZERO);
                    return SupervisorEvent::Ended(loss);
                }
                GroupState::Paused(until) => {
                    sleep_until(*until).await;
                    let connecting = (self.start_group)(Some(self.baseline.clone()));
                    let starting = start(connecting, self.timeouts.startup, self.baseline.clone());
                    self.state = GroupState::Starting(starting.boxed());
                }
                GroupState::Starting(starting) => match starting.await {
                    Ok((group, GroupAnnouncement { ready, lost_adapters, .. })) => {
                        let watched = WatchedGroup::new(group, self.timeouts, &ready);
                        self.state = GroupState::Running(Box::new(watched));
                        return SupervisorEvent::Ready(Box::new(ready), lost_adapters);
                    }
                    Err(loss) => {
                        self.pause(Duration::ZERO);
                        return SupervisorEvent::Ended(loss);
                    }
                },
            }
        }
    }

    /// Starts to kill the running group.
    pub(super) fn end_group(&mut self, failure: GroupFailure) {
        let paused = GroupState::Paused(Instant::now());
        if let GroupState::Running(watched) = std::mem::replace(&mut self.state, paused) {
            self.state = GroupState::Ending(watched.kill(failure).boxed());
        }
    }

    /// Asks the running group to end, and kills it after `grace`. The next group may start then.
    pub(super) fn restart_group(&mut self, grace: Duration) {
        let paused = GroupState::Paused(Instant::now());
        if let GroupState::Running(watched) = std::mem::replace(&mut self.state, paused) {
            let ending = async move {
                watched.end(grace).await;
                GroupLoss::requested()
            };
            self.state = GroupState::Ending(ending.boxed());
        }
    }

    /// Starts the next group after this time.
    pub(super) fn pause(&mut self, pause: Duration) {
        self.state = GroupState::Paused(Instant::now() + pause);
    }

    /// Ends the group in whatever state it is. No process is left afterwards.
    pub(super) async fn stop(self, grace: Duration) {
        match self.state {
            GroupState::Running(watched) => watched.end(grace).await,
            GroupState::Ending(ending) => drop(ending.await),
            // Dropping a start kills the processes that it has started.
            GroupState::Starting(_) | GroupState::Paused(_) => {}
        }
    }
}

/// Waits until a new group is ready, and checks that it serves the same model as the first one.
async fn start(
    connecting: BoxFuture<'static, Result<ShardGroup, StartError>>,
    silence: Duration,
    baseline: GroupBaseline,
) -> Result<(ShardGroup, GroupAnnouncement), GroupLoss> {
    let mut group = connecting.await?;
    let ready = group.wait_until_ready(silence, |_| {}).await;
    let checked = ready.and_then(|announcement| match baseline.rank_with_other_files(&announcement) {
        None => Ok(announcement),
        Some(rank) => Err(GroupLoss::lasting(format!(
            "shard {rank} has loaded other files than before: the model has been changed while the server ran; restart \
             the server to serve the files that are there now"
        ))),
    });
    let loaded = match checked {
        Ok(mut announcement) => {
            announcement.adapters = baseline.adapters;
            let lost = group.load_adapters(&mut announcement.adapters, silence).await;
            lost.map(|lost| GroupAnnouncement { lost_adapters: lost, ..announcement })
        }
        Err(loss) => Err(loss),
    };
    match loaded {
        Ok(announcement) => Ok((group, announcement)),
        Err(loss) => match group.kill().await {
            Ok(()) => Err(loss),
            Err(unreaped) => Err(GroupLoss::lasting(format!("{}; {unreaped}", loss.reason))),
        },
    }
}
