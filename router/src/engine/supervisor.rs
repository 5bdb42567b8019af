//! The life of the shards: watched over while they run, ended together when one of them is lost, and started again.
//!
//! A shard is lost when its connection or its process ends, when it says so, when it says what it must not, when it
//! does not answer pings, which it does whatever it computes, and when a step takes too long. What ended it never
//! matters: the group is killed and another one takes its place.

//!
//! Time in which this process stands still counts for nobody: the shards may have stood still with it.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_proto::{Ping, Ready, Step, StepOutput, to_shard};
use tokio::time::{Instant, sleep_until};

use super::deadline::StepDeadline;
use super::group::{Group, News, StartError};
use super::kept::{Announced, Kept};
use super::loading;
use super::losses::Loss;
use super::patience::SLICE;

/// How long silence is borne.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// While a group starts.
    pub(super) startup: Duration,
    /// From a rank that is asked whether it is there.
    pub(super) heartbeat: Duration,
    /// While a step is computed; derived from the steps before it if not given.
    pub(super) step: Option<Duration>,
}

/// Starts a group, with what it must have in common with the first one, if there was one.
pub(super) type Connect =
    Box<dyn FnMut(Option<Kept>) -> BoxFuture<'static, Result<Group, StartError>> + Send>;

/// What has become of the shards.
#[derive(Debug)]
pub(super) enum Change {
    /// A step was answered.
    Answer(StepOutput),
    /// The shards have been well for a while, without work.
    Alive,
    /// A shard is lost, and all that was sent with it. [`Change::Ended`] follows.
    Lost,
    /// A group has ended, for this reason. The next one is started after [`Supervisor::rest`].
    Ended(Loss),
    /// A new group is ready.
    Up(Ready),
}

/// See the [module](self).
pub(super) struct Supervisor {
    connect: Connect,
    patience: Patience,
    /// What the first group announced.
    kept: Kept,
    life: Life,
}

enum Life {
    Running(Box<Watched>),
    /// Being killed; in the end it is known why.
    Ending(BoxFuture<'static, Loss>),
    Resting(Instant),
    Starting(BoxFuture<'static, Result<(Group, Announced), Loss>>),
}

impl Supervisor {
    /// Takes over the first group, which has `announced` that it is ready.
    pub(super) fn new(connect: Connect, group: Group, patience: Patience, announced: &Announced) -> Self {
        let life = Life::Running(Box::new(Watched::new(group, patience, &announced.ready)));
        Supervisor { connect, patience, kept: Kept::of(announced), life }
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
                    let connecting = (self.connect)(Some(self.kept.clone()));
                    let starting = start(connecting, self.patience.startup, self.kept.clone());
                    self.life = Life::Starting(starting.boxed());
                }
                Life::Starting(starting) => match starting.await {
                    Ok((group, Announced { ready, .. })) => {
                        self.life = Life::Running(Box::new(Watched::new(group, self.patience, &ready)));
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
                let loss = match lost {
                    Lost::Dead(rank, news) => group.explain(rank, news).await,
                    other => Loss::of_shards(other.to_string()),
                };
                match group.kill().await {
                    Ok(()) => loss,
                    Err(unreaped) => Loss::lasting(format!("{}; {unreaped}", loss.why)),
                }
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
    kept: Kept,
) -> Result<(Group, Announced), Loss> {
    let mut group = connecting.await?;
    let ready = loading::all_ready(&mut group, silence, |_| {}).await;
    let checked = ready.and_then(|announced| match kept.differs(&announced) {
        None => Ok(announced),
        Some(rank) => Err(Loss::lasting(format!(
            "shard {rank} has loaded other files than before: the model has been changed while the server ran; restart \
             the server to serve the files that are there now"
        ))),
    });
    match checked {
        Ok(announced) => Ok((group, announced)),
        Err(loss) => match group.kill().await {
            Ok(()) => Err(loss),
            Err(unreaped) => Err(Loss::lasting(format!("{}; {unreaped}", loss.why))),
        },
    }
}

/// Why the shards cannot be worked with any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// This rank is dead, or says that it will be.
    #[error("shard {0} is dead")]
    Dead(usize, News),
    /// An answer that no step asked for.
    #[error("shard 0 sent {0}")]
    Nonsense(String),
    /// A message that is not an answer.
    #[error("shard {0} sent a message that has no place while serving")]
    OutOfPlace(usize),
    /// No answer to a step in this time, which is derived unless it is fixed.
    #[error("a step has taken more than {:.1} s ({})", .after.as_secs_f64(), bound(*.fixed))]
    Stuck { after: Duration, fixed: bool },
    /// No sign of life of this rank in this time.
    #[error("shard {rank} has not been heard of for {} s (--heartbeat-timeout)", .after.as_secs_f64())]
    Silent { rank: usize, after: Duration },
}

/// Where the deadline of a step comes from.
fn bound(is_fixed: bool) -> &'static str {
    match is_fixed {
        true => "--step-timeout",
        false => "many times what was predicted; --step-timeout sets a fixed time",
    }
}

/// Pings that a rank may leave unanswered. They are counted, and not the time: a machine that was asleep itself must not
/// blame the shards.
const UNANSWERED: u32 = 4;

/// The most that a standstill of this process adds to the age of a step that may take `allowed`: a small part of it, so that
/// the shards have the time to answer afterwards.
fn slice(allowed: Duration) -> Duration {
    SLICE.min(allowed / 4)
}

/// A group that has been well for so long without work is worth as much as one that has worked.
const SETTLED: Duration = Duration::from_secs(5);

/// A group that runs, and when it was last heard of.
struct Watched {
    group: Group,
    patience: Patience,
    /// Since when it runs, until it has settled.
    settling: Option<Instant>,
    deadline: StepDeadline,
    /// The work of each step that is not answered, oldest first.
    steps: VecDeque<f64>,
    /// How long the oldest of them has been computed while this process ran.
    age: Duration,
    /// Until when the age has been counted.
    counted: Instant,
    /// This process stood still since the oldest step began, so that its time says nothing.
    stood_still: bool,
    /// Pings that each rank has not answered.
    unanswered: Vec<u32>,
    next_ping: Instant,
}

impl Watched {
    fn new(group: Group, patience: Patience, ready: &Ready) -> Self {
        let now = Instant::now();
        let unanswered = vec![0; group.world_size()];
        Watched {
            group,
            patience,
            settling: Some(now),
            deadline: StepDeadline::new(patience.step, ready),
            steps: VecDeque::new(),
            age: Duration::ZERO,
            counted: now,
            stood_still: false,
            unanswered,
            next_ping: now,
        }
    }

    fn send(&mut self, step: Step) {
        if self.steps.is_empty() {
            self.begin_step();
        }
        self.steps.push_back(self.deadline.work(&step));
        self.group.send(to_shard::Message::Step(step));
    }

    /// The oldest step that is not answered begins now.
    fn begin_step(&mut self) {
        (self.age, self.counted, self.stood_still) = (Duration::ZERO, Instant::now(), false);
    }

    async fn next(&mut self) -> Result<Change, Lost> {
        loop {
            self.count();
            // At least twice per slice, so that only a standstill is longer than one.
            let look = self.allowed().map(|allowed| {
                let left = allowed.saturating_sub(self.age);
                Instant::now() + left.min(slice(allowed) / 2)
            });
            let alarm = look.into_iter().chain([self.next_ping]).min().unwrap_or(self.next_ping);
            tokio::select! {
                // What has been said counts, even if it is looked at late.
                biased;
                (rank, news) = self.group.next() => {
                    if let Some(change) = self.hear(rank, news)? {
                        return Ok(change);
                    }
                }
                () = sleep_until(alarm) => {
                    self.count();
                    self.judge()?;
                    if self.next_ping <= Instant::now() {
                        self.ping()?;
                    }
                }
            }
        }
    }

    /// How long the oldest step may take.
    fn allowed(&self) -> Option<Duration> {
        self.steps.front().map(|&work| self.deadline.allowed(work))
    }

    /// Adds the time since the last call to the age of the oldest step, without what this process stood still.
    fn count(&mut self) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.counted);
        self.counted = now;
        let longest = self.allowed().map_or(SLICE, slice);
        self.age += passed.min(longest);
        self.stood_still |= passed > longest;
    }

    /// Whether the oldest step has taken too long.
    fn judge(&self) -> Result<(), Lost> {
        match self.allowed() {
            Some(after) if self.age >= after => {
                Err(Lost::Stuck { after, fixed: self.patience.step.is_some() })
            }
            _ => Ok(()),
        }
    }

    /// Asks all ranks whether they are there, if they have said so of late.
    fn ping(&mut self) -> Result<(), Lost> {
        if self.next_ping.elapsed() > SLICE {
            // This process stood still. The ranks may have stood still before it did, and may still do so.
            self.unanswered.fill(0);
        }
        if let Some(rank) = self.unanswered.iter().position(|&unanswered| unanswered >= UNANSWERED) {
            return Err(Lost::Silent { rank, after: self.patience.heartbeat });
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
                self.count();
                if let Some(work) = self.steps.pop_front()
                    && !self.stood_still
                {
                    self.deadline.observe(work, Duration::from_micros(output.step_micros));
                }
                self.begin_step();
                Ok(Some(Change::Answer(*output)))
            }
            News::Pong => {
                self.unanswered[rank] = 0;
                let settled = self.settling.is_some_and(|since| since.elapsed() >= SETTLED);
                if settled
                    && self.steps.is_empty()
                    && self.unanswered.iter().all(|&unanswered| unanswered == 0)
                {
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
