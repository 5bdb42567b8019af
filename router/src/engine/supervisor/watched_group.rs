//! A running group, its events, and the timeouts of its steps and pings.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_proto::{AdapterLoaded, Ping, Ready, Step, StepOutput, to_shard};
use tokio::time::{Instant, sleep_until};

use super::failure::GroupFailure;
use crate::engine::group::{GroupEvent, ShardGroup};
use crate::engine::kept_adapters::LostAdapter;
use crate::engine::loss::GroupLoss;
use crate::engine::step_deadline::StepDeadline;
use crate::engine::timeout::MAX_SLICE;

/// Maximum times for which a shard may be silent.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct ShardTimeouts {
    /// While a group starts.
    pub(in crate::engine) startup: Duration,
    /// Between a ping and its answer.
    pub(in crate::engine) heartbeat: Duration,
    /// While a step is computed. Without a value it is derived from the steps before.
    pub(in crate::engine) step: Option<Duration>,
}

/// An event of the supervisor.
#[derive(Debug)]
pub(in crate::engine) enum SupervisorEvent {
    /// The answer to a step.
    Answer(StepOutput),
    /// The forward pass of the step with this number is done, and its masks have not come.
    MasksDue(u64),
    /// The answer of a rank to the load of an adapter.
    AdapterLoaded(usize, AdapterLoaded),
    /// The group has been healthy for some time without work.
    Settled,
    /// A shard is lost, and with it all steps in flight. [`SupervisorEvent::Ended`] follows.
    Lost,
    /// The group has ended, or could not be started. The next one starts after
    /// [`Supervisor::pause`](super::Supervisor::pause).
    Ended(GroupLoss),
    /// A new group is ready, except for these adapters.
    Ready(Box<Ready>, Vec<LostAdapter>),
}

/// Number of pings that a rank may leave unanswered. Pings are counted instead of time: after this
/// process was suspended, it must not blame the shards.
const MAX_UNANSWERED_PINGS: u32 = 4;

/// Time after which a group that is healthy without work counts as much as one that has answered a
/// step.
const SETTLED: Duration = Duration::from_secs(5);

/// The most that a suspension of this process adds to the age of a step with the deadline
/// `allowed`. It is a small part of the deadline, so the shards have time to answer afterwards.
fn max_slice(allowed: Duration) -> Duration {
    MAX_SLICE.min(allowed / 4)
}

/// A running group and its timeouts.
pub(super) struct WatchedGroup {
    group: ShardGroup,
    timeouts: ShardTimeouts,
    /// The start of the group, until it has settled.
    settling_since: Option<Instant>,
    deadline: StepDeadline,
    /// The work of each step in flight, oldest first.
    steps: VecDeque<f64>,
    /// Age of the oldest step, without the time in which this process was suspended.
    step_age: Duration,
    /// Time until which `step_age` has been counted.
    counted_until: Instant,
    /// Whether this process was suspended since the oldest step began. The time of such a step is
    /// not used for predictions.
    was_suspended: bool,
    /// Number of unanswered pings of each rank.
    unanswered_pings: Vec<u32>,
    next_ping: Instant,
}

impl WatchedGroup {
    pub(super) fn new(group: ShardGroup, timeouts: ShardTimeouts, ready: &Ready) -> Self {
        let now = Instant::now();
        let unanswered_pings = vec![0; group.world_size()];
        WatchedGroup {
            group,
            timeouts,
            settling_since: Some(now),
            deadline: StepDeadline::new(timeouts.step, ready),
            steps: VecDeque::new(),
            step_age: Duration::ZERO,
            counted_until: now,
            was_suspended: false,
            unanswered_pings,
            next_ping: now,
        }
    }

    pub(super) fn send(&mut self, step: Step) {
        if self.steps.is_empty() {
            self.begin_step();
        }
        self.steps.push_back(self.deadline.work(&step));
        self.group.send(to_shard::Message::Step(step));
    }

    /// Sends a message other than a step.
    pub(super) fn send_message(&self, message: to_shard::Message) {
        self.group.send(message);
    }

    /// Returns the next event, or the failure that ends the group. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<SupervisorEvent, GroupFailure> {
        loop {
            self.count_age();
            // The age is counted at least twice per slice, so only a suspension is longer than a
            // slice.
            let check = self.allowed().map(|allowed| {
                let left = allowed.saturating_sub(self.step_age);
                Instant::now() + left.min(max_slice(allowed) / 2)
            });
            let alarm = check.into_iter().chain([self.next_ping]).min().unwrap_or(self.next_ping);
            tokio::select! {
                // An event that has arrived counts, even if this process reads it late.
                biased;
                (rank, event) = self.group.next() => {
                    if let Some(event) = self.on_event(rank, event)? {
                        return Ok(event);
                    }
                }
                () = sleep_until(alarm) => {
                    self.count_age();
                    self.check_step_deadline()?;
                    if self.next_ping <= Instant::now() {
                        self.ping()?;
                    }
                }
            }
        }
    }

    /// Asks all ranks to exit, and kills those that have not after `grace`.
    pub(super) async fn end(self, grace: Duration) {
        self.group.end(grace).await;
    }

    /// Kills the group. Returns the explanation of its loss.
    pub(super) async fn kill(self, failure: GroupFailure) -> GroupLoss {
        let mut group = self.group;
        let loss = match failure {
            GroupFailure::Dead(rank, event) => group.explain(rank, event).await,
            other => GroupLoss::of_shards(other.to_string()),
        };
        match group.kill().await {
            Ok(()) => loss,
            Err(unreaped) => GroupLoss::lasting(format!("{}; {unreaped}", loss.reason)),
        }
    }

    /// Notes that the oldest step begins now.
    fn begin_step(&mut self) {
        (self.step_age, self.counted_until, self.was_suspended) = (Duration::ZERO, Instant::now(), false);
    }

    /// The deadline of the oldest step.
    fn allowed(&self) -> Option<Duration> {
        self.steps.front().map(|&work| self.deadline.allowed(work))
    }

    /// Adds the time since the last call to the age of the oldest step. Of a suspension only one
    /// slice is added.
    fn count_age(&mut self) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.counted_until);
        self.counted_until = now;
        let longest = self.allowed().map_or(MAX_SLICE, max_slice);
        self.step_age += passed.min(longest);
        self.was_suspended |= passed > longest;
    }

    fn check_step_deadline(&self) -> Result<(), GroupFailure> {
        match self.allowed() {
            Some(after) if self.step_age >= after => {
                Err(GroupFailure::StepTimeout { after, fixed: self.timeouts.step.is_some() })
            }
            _ => Ok(()),
        }
    }

    /// Pings all ranks, unless one of them has left too many pings unanswered.
    fn ping(&mut self) -> Result<(), GroupFailure> {
        if self.next_ping.elapsed() > MAX_SLICE {
            // This process was suspended. The ranks may have been suspended before it, and may
            // still be.
            self.unanswered_pings.fill(0);
        }
        let silent = self.unanswered_pings.iter().position(|&pings| pings >= MAX_UNANSWERED_PINGS);
        if let Some(rank) = silent {
            return Err(GroupFailure::HeartbeatTimeout { rank, after: self.timeouts.heartbeat });
        }
        self.unanswered_pings.iter_mut().for_each(|pings| *pings += 1);
        self.next_ping = Instant::now() + self.timeouts.heartbeat / MAX_UNANSWERED_PINGS;
        self.group.send(to_shard::Message::Ping(Ping {}));
        Ok(())
    }

    fn on_event(&mut self, rank: usize, event: GroupEvent) -> Result<Option<SupervisorEvent>, GroupFailure> {
        match event {
            // All ranks compute the same, and rank 0 answers.
            GroupEvent::Output(output) if rank == 0 => {
                self.count_age();
                if let Some(work) = self.steps.pop_front()
                    && !self.was_suspended
                {
                    self.deadline.observe(
                        work,
                        Duration::from_micros(output.step_micros.saturating_sub(output.disk_micros)),
                    );
                }
                self.begin_step();
                Ok(Some(SupervisorEvent::Answer(*output)))
            }
            GroupEvent::MasksDue(step) if rank == 0 => Ok(Some(SupervisorEvent::MasksDue(step))),
            GroupEvent::AdapterLoaded(loaded) => Ok(Some(SupervisorEvent::AdapterLoaded(rank, loaded))),
            GroupEvent::Pong => {
                self.unanswered_pings[rank] = 0;
                Ok(self.has_just_settled().then_some(SupervisorEvent::Settled))
            }
            GroupEvent::Output(_)
            | GroupEvent::MasksDue(_)
            | GroupEvent::Loading(_)
            | GroupEvent::Ready(_)
            | GroupEvent::Rendezvous(_)
            | GroupEvent::Unknown => Err(GroupFailure::UnexpectedMessage(rank)),
            GroupEvent::Fault(_) | GroupEvent::Closed(_) | GroupEvent::Exited(_) => {
                Err(GroupFailure::Dead(rank, event))
            }
        }
    }

    /// Whether the group has been healthy without work for long enough. It is true once.
    fn has_just_settled(&mut self) -> bool {
        let is_settled = self.settling_since.is_some_and(|since| since.elapsed() >= SETTLED)
            && self.steps.is_empty()
            && self.unanswered_pings.iter().all(|&pings| pings == 0);
        if is_settled {
            self.settling_since = None;
        }
        is_settled
    }
}
