//! The life of the shards: watched over while they run, ended together when one of them is lost, and started again.
//!
//! A shard is lost when its connection or its process ends, when it says so, when it says what it must not, and when it
//! is silent for longer than a step may take: while it has steps to answer, and while it has none, by a ping now and
//! then. What ended it never matters: the group is killed and another one takes its place.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_proto::{Ping, Ready, Step, StepOutput, to_shard};
use tokio::time::{Instant, sleep_until};

use super::group::{Group, News, StartError};
use super::loading;

/// How long a shard without work is left alone.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Starts a group.
pub(super) type Connect = Box<dyn FnMut() -> BoxFuture<'static, Result<Group, StartError>> + Send>;

/// What has become of the shards.
#[derive(Debug)]
pub(super) enum Change {
    /// A step was answered.
    Answer(StepOutput),
    /// A shard without work has said that it is there.
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
    startup_silence: Duration,
    step_timeout: Duration,
    life: Life,
}

enum Life {
    Running(Watched),
    /// Being killed; in the end it is known why.
    Ending(BoxFuture<'static, String>),
    Resting(Instant),
    Starting(BoxFuture<'static, Result<(Group, Ready), String>>),
}

impl Supervisor {
    /// Takes over a group that is ready.
    pub(super) fn new(
        connect: Connect,
        group: Group,
        startup_silence: Duration,
        step_timeout: Duration,
    ) -> Self {
        let life = Life::Running(Watched::new(group, step_timeout));
        Supervisor { connect, startup_silence, step_timeout, life }
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
                    let starting = start((self.connect)(), self.startup_silence);
                    self.life = Life::Starting(starting.boxed());
                }
                Life::Starting(starting) => match starting.await {
                    Ok((group, ready)) => {
                        self.life = Life::Running(Watched::new(group, self.step_timeout));
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
        if let Life::Running(Watched { mut group, .. }) =
            std::mem::replace(&mut self.life, Life::Resting(Instant::now()))
        {
            let ending = async move {
                let why = match lost {
                    Lost::Dead(rank, news) => group.explain(rank, news).await,
                    Lost::Nonsense(what) => format!("shard 0 sent {what}"),
                    Lost::OutOfPlace(rank) => {
                        format!("shard {rank} sent a message that has no place while serving")
                    }
                    Lost::Silent(after) => {
                        format!("the shards have not answered for {:.1} s", after.as_secs_f64())
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
            Life::Running(Watched { group, .. }) => group.end(grace).await,
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
    /// No answer in this time.
    Silent(Duration),
}

/// A group that runs, and when it was last heard of.
struct Watched {
    group: Group,
    step_timeout: Duration,
    /// Steps that are not answered.
    steps: usize,
    /// Since when the oldest of them is computed.
    since: Instant,
    /// Ranks that have a ping to answer.
    pongs: usize,
    pinged: Instant,
    /// The last answer of any kind.
    heard: Instant,
}

impl Watched {
    fn new(group: Group, step_timeout: Duration) -> Self {
        let now = Instant::now();
        Watched { group, step_timeout, steps: 0, since: now, pongs: 0, pinged: now, heard: now }
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
            let alarm = self.alarm();
            tokio::select! {
                // What has been said counts, even if it is looked at late.
                biased;
                (rank, news) = self.group.next() => {
                    if let Some(change) = self.hear(rank, news)? {
                        return Ok(change);
                    }
                }
                () = sleep_until(alarm) => {
                    if self.steps > 0 || self.pongs > 0 {
                        return Err(Lost::Silent(self.step_timeout));
                    }
                    self.pongs = self.group.world_size();
                    self.pinged = Instant::now();
                    self.group.send(to_shard::Message::Ping(Ping {}));
                }
            }
        }
    }

    /// When to give the shards up, or to ask after them.
    fn alarm(&self) -> Instant {
        let step = (self.steps > 0).then(|| self.since + self.step_timeout);
        let pong = (self.pongs > 0).then(|| self.pinged + self.step_timeout);
        let ping = self.heard + PING_EVERY.min(self.step_timeout);
        step.into_iter().chain(pong).min().unwrap_or(ping)
    }

    fn hear(&mut self, rank: usize, news: News) -> Result<Option<Change>, Lost> {
        self.heard = Instant::now();
        match news {
            // All ranks compute the same; the first one speaks for them.
            News::Output(output) if rank == 0 => {
                self.steps = self.steps.saturating_sub(1);
                self.since = self.heard;
                Ok(Some(Change::Answer(output)))
            }
            News::Pong if self.pongs > 0 => {
                self.pongs -= 1;
                Ok((self.pongs == 0).then_some(Change::Alive))
            }
            News::Output(_) | News::Pong | News::Loading(_) | News::Ready(_) | News::Unknown => {
                Err(Lost::OutOfPlace(rank))
            }
            News::Fault(_) | News::Closed(_) | News::Exited(_) => Err(Lost::Dead(rank, news)),
        }
    }
}
