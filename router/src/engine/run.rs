//! The engine's task: plan a step, send it, apply its answer, and meanwhile listen to commands.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use millrace_proto::{Ready, StepOutput, to_shard};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::EngineConfig;
use super::dispatch::{self, Batch};
use super::group::{Group, News, StartError};
use super::handle::{Command, Event, Permit, Request, State};
use super::loading::load;
use super::meter::{self, Measured};
use crate::scheduler::{Limits, Malformed, Options, Plan, Scheduler, SeqId};

/// Steps sent and not answered. With 2 the shards never wait for the router; the scheduler is ready for it.
const STEPS_IN_FLIGHT: usize = 1;

/// How the engine's life ended.
#[derive(Debug)]
pub(super) enum End {
    /// It was asked to.
    Drained,
    /// It lost its shards, or never had them.
    Failed(String),
}

/// The whole life of an engine. No shard process is left afterwards.
pub(super) async fn run(
    config: EngineConfig,
    mut commands: mpsc::UnboundedReceiver<Command>,
    state: watch::Sender<State>,
    connect: impl Future<Output = Result<Group, StartError>>,
) {
    let end = match load(config.startup_silence, &mut commands, &state, connect).await {
        Ok((group, ready)) => serve(config, group, ready, &mut commands, &state).await,
        Err(end) => end,
    };
    let why = match end {
        End::Drained => {
            state.send_replace(State::Draining);
            "Server is shutting down".to_owned()
        }
        End::Failed(why) => {
            tracing::error!("the engine failed: {why}");
            state.send_replace(State::Failed(why.clone()));
            format!("Engine failed: {why}")
        }
    };
    // Requests that were on their way.
    commands.close();
    while let Some(command) = commands.recv().await {
        if let Command::Submit { events, .. } = command {
            let _ = events.send(Event::Failed(why.clone()));
        }
    }
}

/// Serves requests until drained or lost.
async fn serve(
    config: EngineConfig,
    group: Group,
    ready: Ready,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    state: &watch::Sender<State>,
) -> End {
    let limits = match Limits::new(&ready) {
        Ok(limits) => limits,
        Err(error) => {
            group.kill().await;
            return End::Failed(error.to_string());
        }
    };
    let (batches, received) = mpsc::unbounded_channel();
    let dispatching = tokio::spawn(dispatch::run(received));
    state.send_replace(State::Ready(Arc::new(ready)));
    let server = Server {
        config,
        limits,
        scheduler: Scheduler::new(limits, Options::default()),
        group,
        open: HashMap::new(),
        sent: VecDeque::new(),
        batch: Batch::default(),
        batches,
        draining: None,
    };
    let end = server.run(commands, state).await;
    // Every event is on its way to its request before the engine is said to have ended.
    if let Err(error) = dispatching.await {
        tracing::error!("the dispatching task failed: {error}");
    }
    end
}

/// A request that the scheduler knows.
struct Open {
    events: mpsc::UnboundedSender<Event>,
    queued: Instant,
    started: bool,
    _permit: Permit,
}

struct Server {
    config: EngineConfig,
    limits: Limits,
    scheduler: Scheduler,
    group: Group,
    open: HashMap<SeqId, Open>,
    /// Steps in flight, oldest first.
    sent: VecDeque<Measured>,
    /// What is to be passed on to requests at the end of this turn.
    batch: Batch,
    batches: mpsc::UnboundedSender<Batch>,
    /// Once draining has begun, when it ends at the latest.
    draining: Option<Instant>,
}

impl Server {
    async fn run(
        mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        state: &watch::Sender<State>,
    ) -> End {
        let mut has_handles = true;
        loop {
            // The shards first: while they compute, there is time for everything else.
            self.send_steps();
            self.publish();
            if self.draining.is_some() && self.scheduler.is_idle() {
                break;
            }
            let deadline = self.draining.unwrap_or_else(Instant::now);
            tokio::select! {
                (rank, news) = self.group.next() => {
                    if let Err(lost) = self.hear(rank, news) {
                        return self.lost(lost).await;
                    }
                }
                command = commands.recv(), if has_handles => match command {
                    Some(Command::Submit { request, events, permit }) => self.submit(request, events, permit),
                    Some(Command::Drain) => self.drain(state),
                    // Nobody can ask for anything any more.
                    None => {
                        has_handles = false;
                        self.drain(state);
                    }
                },
                () = sleep_until(deadline), if self.draining.is_some() => {
                    self.fail_all("Server is shutting down");
                }
            }
        }
        self.group.end(self.config.shutdown_grace).await;
        End::Drained
    }

    /// Plans and sends as long as steps may be in flight and there is work.
    fn send_steps(&mut self) {
        while self.scheduler.in_flight() < STEPS_IN_FLIGHT {
            self.cancel_abandoned();
            let Some(Plan { step, admitted }) = self.scheduler.plan() else { return };
            self.sent.push_back(Measured::sent(&step));
            self.group.send(to_shard::Message::Step(step));
            for id in admitted.into_iter().map(|admitted| admitted.sequence) {
                if let Some(open) = self.open.get_mut(&id).filter(|open| !open.started) {
                    open.started = true;
                    self.batch.started.push((id, open.queued.elapsed()));
                }
            }
        }
    }

    /// A request whose receiver was dropped holds nothing in the next step, wherever it was.
    fn cancel_abandoned(&mut self) {
        let Server { open, scheduler, batch, .. } = self;
        open.retain(|&id, open| {
            let abandoned = open.events.is_closed();
            if abandoned {
                scheduler.cancel(id);
                batch.abandoned.push(id);
            }
            !abandoned
        });
    }

    /// Hands this turn's events over, and shows the gauges.
    fn publish(&mut self) {
        if !self.batch.is_empty() {
            // The dispatching task ends only after this sender is dropped.
            let _ = self.batches.send(std::mem::take(&mut self.batch));
            meter::show(&self.scheduler.stats(), self.limits.num_blocks);
        }
    }

    fn submit(&mut self, request: Request, events: mpsc::UnboundedSender<Event>, permit: Permit) {
        let refused = match self.draining {
            Some(_) => "Server is shutting down".to_owned(),
            None => match self.scheduler.add(request) {
                Ok(id) => {
                    self.batch.opened.push((id, events.clone()));
                    let open = Open { events, queued: Instant::now(), started: false, _permit: permit };
                    self.open.insert(id, open);
                    return;
                }
                Err(impossible) => impossible.to_string(),
            },
        };
        let _ = events.send(Event::Failed(refused));
    }

    /// Takes no more work. The loop ends when what there is has ended.
    fn drain(&mut self, state: &watch::Sender<State>) {
        if self.draining.is_none() {
            self.draining = Some(Instant::now() + self.config.drain_timeout);
            state.send_replace(State::Draining);
        }
    }

    /// Takes in what a shard says.
    fn hear(&mut self, rank: usize, news: News) -> Result<(), Lost> {
        match news {
            // All ranks compute the same; the first one speaks for them.
            News::Output(output) if rank == 0 => self.apply(output).map_err(Lost::Nonsense),
            News::Output(_) | News::Loading(_) | News::Ready(_) | News::Unknown => {
                Err(Lost::OutOfPlace(rank))
            }
            News::Fault(_) | News::Closed(_) | News::Exited(_) => Err(Lost::Dead(rank, news)),
        }
    }

    fn apply(&mut self, output: StepOutput) -> Result<(), Malformed> {
        let forward_micros = output.forward_micros;
        let outputs = self.scheduler.apply(output)?;
        if let Some(measured) = self.sent.pop_front() {
            measured.answered(forward_micros);
        }
        for output in outputs.iter().filter(|output| output.finish.is_some()) {
            self.open.remove(&output.sequence);
        }
        self.batch.outputs.extend(outputs);
        Ok(())
    }

    /// Decides what becomes of the engine when its shards are lost: it ends, and all requests with it. (The scheduler
    /// keeps every sequence's tokens, so this is the place to start a new group and admit them again instead.)
    async fn lost(mut self, lost: Lost) -> End {
        let why = match lost {
            Lost::Dead(rank, news) => self.group.explain(rank, news).await,
            Lost::Nonsense(malformed) => format!("shard 0 sent {malformed}"),
            Lost::OutOfPlace(rank) => format!("shard {rank} sent a message that has no place while serving"),
        };
        self.fail_all(&format!("Engine failed: {why}"));
        self.sent.drain(..).for_each(Measured::lost);
        self.publish();
        self.group.kill().await;
        End::Failed(why)
    }

    /// Ends all requests with an error.
    fn fail_all(&mut self, why: &str) {
        for (id, _) in self.open.drain() {
            self.scheduler.cancel(id);
            self.batch.failed.push((id, why.to_owned()));
        }
    }
}

/// Why the shards cannot be worked with any more.
#[derive(Debug)]
enum Lost {
    /// This rank is dead, or says that it will be.
    Dead(usize, News),
    /// An answer that no step asked for.
    Nonsense(Malformed),
    /// A message that is not an answer.
    OutOfPlace(usize),
}
