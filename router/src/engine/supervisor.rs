//! The life of the shards: watched over while they run, ended together when one of them is lost, and started again.
//!
//! A shard is lost when its connection or its process ends, when it says so, when it says what it must not, when it
//! does not answer pings, which it does whatever it computes, and when a step takes too long. What ended it never
//! matters: the group is killed and another one takes its place.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_proto::{Ping, Ready, Step, StepOutput, to_shard};
use tokio::time::{Instant, sleep_until};

use super::group::{Group, News, StartError};
use super::loading;

/// How long silence is borne.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// While a group starts.
    pub(super) startup: Duration,
    /// From a rank that is asked whether it is there.
    pub(super) heartbeat: Duration,
    /// While a step is computed.
    pub(super) step: Duration,
}

/// Starts a group.
pub(super) type Connect = Box<dyn FnMut() -> BoxFuture<'static, Result<Group, StartError>> + Send>;

/// What has become of the shards.
#[derive(Debug)]
pub(super) enum Change {
    /// A step was answered.
    Answer(StepOutput),
    /// The shards have been well for a while, without work.
    Alive,
    /// A shard is lost, and all that was sent with it. [`Change::Ended`] follows.
    Lost,
    /// No process is left of a group; the text says why. The next one is started after [`Supervisor::rest`].
    Ended(String),
    /// A new group is ready.
    Up(Ready),
}

/// See the [module](self).
pub(super) struct Supervisor {
    connect: Connect,
    patience: Patience,
    life: Life,
}

enum Life {
    Running(Box<Watched>),
    /// Being killed; in the end it is known why.
    Ending(BoxFuture<'static, String>),
    Resting(Instant),
    Starting(BoxFuture<'static, Result<(Group, Ready), String>>),
}

impl Supervisor {
    /// Takes over a group that is ready.
    pub(super) fn new(connect: Connect, group: Group, patience: Patience) -> Self {
        let life = Life::Running(Box::new(Watched::new(group, patience)));
        Supervisor { connect, patience, life }
    }

    /// Whether steps can be sent.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.life, Life::Running(_))
    }

    /// Sends a step to all ranks; without a group it is lost.
    pub(super) fn send(&mut self, step: Step) {
        if let Life::Running(watched) = &mut self.life {
            watched.send(step);
        }
    }

    /// What happens next. Cancel safe.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            match &mut self.life {
                Life::Running(watched) => match watched.next().await {
                    Ok(change) => return change,
                    Err(lost) => {
                        self.end(lost);
                        return Change::Lost;
                    }
                },
                Life::Ending(ending) => {
                    let why = ending.await;
                    self.rest(Duration::ZERO);
                    return Change::Ended(why);
                }
                Life::Resting(until) => {
                    sleep_until(*until).await;
                    let starting = start((self.connect)(), self.patience.startup);
                    self.life = Life::Starting(starting.boxed());
                }
                Life::Starting(starting) => match starting.await {
                    Ok((group, ready)) => {
                        self.life = Life::Running(Box::new(Watched::new(group, self.patience)));
                        return Change::Up(ready);
                    }
                    Err(why) => {
                        self.rest(Duration::ZERO);
                        return Change::Ended(why);
                    }
                },
            }
        }
    }

    /// Gives the running group up.
    pub(super) fn end(&mut self, lost: Lost) {
        if let Life::Running(watched) = std::mem::replace(&mut self.life, Life::Resting(Instant::now())) {
            let mut group = watched.group;
            let ending = async move {
                let why = match lost {
                    Lost::Dead(rank, news) => group.explain(rank, news).await,
                    Lost::Nonsense(what) => format!("shard 0 sent {what}"),
                    Lost::OutOfPlace(rank) => {
                        format!("shard {rank} sent a message that has no place while serving")
                    }
                    Lost::Stuck(after) => {
                        format!("a step has taken more than {} s (--step-timeout)", after.as_secs_f64())
                    }
                    Lost::Silent(rank, after) => {
                        format!(
                            "shard {rank} has not been heard of for {} s (--heartbeat-timeout)",
                            after.as_secs_f64()
                        )
                    }
                };
                group.kill().await;
                why
            };
            self.life = Life::Ending(ending.boxed());
        }
    }

    /// Lets this time pass before the next group is started.
    pub(super) fn rest(&mut self, pause: Duration) {
        self.life = Life::Resting(Instant::now() + pause);
    }

    /// Ends whatever there is; no process is left afterwards.
    pub(super) async fn stop(self, grace: Duration) {
        match self.life {
            Life::Running(watched) => watched.group.end(grace).await,
            Life::Ending(ending) => drop(ending.await),
            // A start that is given up kills what it has started.
            Life::Starting(_) | Life::Resting(_) => {}
        }
    }
}

async fn start(
    connecting: BoxFuture<'static, Result<Group, StartError>>,
    silence: Duration,
) -> Result<(Group, Ready), String> {
    let mut group = connecting.await.map_err(|error| error.to_string())?;
    match loading::all_ready(&mut group, silence, |_| {}).await {
        Ok(ready) => Ok((group, ready)),
        Err(why) => {
            group.kill().await;
            Err(why)
        }
    }
}

/// Why the shards cannot be worked with any more.
#[derive(Debug)]
pub(super) enum Lost {
    /// This rank is dead, or says that it will be.
    Dead(usize, News),
    /// An answer that no step asked for.
    Nonsense(String),
    /// A message that is not an answer.
    OutOfPlace(usize),
    /// No answer to a step in this time.
    Stuck(Duration),
    /// No sign of life of this rank in this time.
    Silent(usize, Duration),
}

/// Pings that a rank may leave unanswered. They are counted, and not the time: a machine that was asleep itself must not
/// blame the shards.
const UNANSWERED: u32 = 4;

/// A group that has been well for so long without work is worth as much as one that has worked.
const SETTLED: Duration = Duration::from_secs(5);

/// A group that runs, and when it was last heard of.
struct Watched {
    group: Group,
    patience: Patience,
    /// Since when it runs, until it has settled.
    settling: Option<Instant>,
    /// Steps that are not answered.
    steps: usize,
    /// Since when the oldest of them is computed.
    since: Instant,
    /// Pings that each rank has not answered.
    unanswered: Vec<u32>,
    next_ping: Instant,
}

impl Watched {
    fn new(group: Group, patience: Patience) -> Self {
        let now = Instant::now();
        let unanswered = vec![0; group.world_size()];
        Watched { group, patience, settling: Some(now), steps: 0, since: now, unanswered, next_ping: now }
    }

    fn send(&mut self, step: Step) {
        if self.steps == 0 {
            self.since = Instant::now();
        }
        self.steps += 1;
        self.group.send(to_shard::Message::Step(step));
    }

    async fn next(&mut self) -> Result<Change, Lost> {
        loop {
            let deadline = (self.steps > 0).then(|| self.since + self.patience.step);
            let alarm = deadline.into_iter().chain([self.next_ping]).min().unwrap_or(self.next_ping);
            tokio::select! {
                // What has been said counts, even if it is looked at late.
                biased;
                (rank, news) = self.group.next() => {
                    if let Some(change) = self.hear(rank, news)? {
                        return Ok(change);
                    }
                }
                () = sleep_until(alarm) => {
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Err(Lost::Stuck(self.patience.step));
                    }
                    self.ping()?;
                }
            }
        }
    }

    /// Asks all ranks whether they are there, if they have said so of late.
    fn ping(&mut self) -> Result<(), Lost> {
        if let Some(rank) = self.unanswered.iter().position(|&unanswered| unanswered >= UNANSWERED) {
            return Err(Lost::Silent(rank, self.patience.heartbeat));
        }
        self.unanswered.iter_mut().for_each(|unanswered| *unanswered += 1);
        self.next_ping = Instant::now() + self.patience.heartbeat / UNANSWERED;
        self.group.send(to_shard::Message::Ping(Ping {}));
        Ok(())
    }

    fn hear(&mut self, rank: usize, news: News) -> Result<Option<Change>, Lost> {
        match news {
            // All ranks compute the same; the first one speaks for them.
            News::Output(output) if rank == 0 => {
                self.steps = self.steps.saturating_sub(1);
                self.since = Instant::now();
                Ok(Some(Change::Answer(*output)))
            }
            News::Pong => {
                self.unanswered[rank] = 0;
                let settled = self.settling.is_some_and(|since| since.elapsed() >= SETTLED);
                if settled && self.steps == 0 && self.unanswered.iter().all(|&unanswered| unanswered == 0) {
                    self.settling = None;
                    return Ok(Some(Change::Alive));
                }
                Ok(None)
            }
            News::Output(_) | News::Loading(_) | News::Ready(_) | News::Rendezvous(_) | News::Unknown => {
                Err(Lost::OutOfPlace(rank))
            }
            News::Fault(_) | News::Closed(_) | News::Exited(_) => Err(Lost::Dead(rank, news)),
        }
    }
}
