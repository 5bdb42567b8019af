//! The engine's task: plan a step, send it, apply its answer, and meanwhile listen to commands.

mod requests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millrace_proto::{Ready, StepOutput};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use self::requests::Open;
use super::EngineConfig;
use super::admission::{Occupancy, Pace};
use super::constraint::MaskPool;
use super::dispatch::{self, Batch};
use super::group::Group;
use super::handle::{Command, Event, Failure, State};
use super::kept::Announced;
use super::loading::load;
use super::losses::{Cause, Decision, Loss, LossPolicy, Losses};
use super::meter::{self, Measured, StepTimes};
use super::supervisor::{Change, Connect, Lost, Patience, Supervisor};
use crate::scheduler::{Limits, News, Options, Plan, Scheduler, SeqId, Stats};

/// Steps sent and not answered. With 2 the shards never wait for the router.
const STEPS_IN_FLIGHT: usize = 2;

/// How often the queue is looked after while no shard answers.
const TICK: Duration = Duration::from_millis(200);

/// How long constrained sequences that can go on wait for others that soon can: a step for each would be a waste.
const GATHER: Duration = Duration::from_millis(2);

const SHUTTING_DOWN: &str = "Server is shutting down";

/// How the engine's life ended.
#[derive(Debug)]
pub(super) enum End {
    /// It was asked to.
    Drained,
    /// It never had shards, or lost them for good.
    Failed(String),
}

/// The whole life of an engine. No shard process is left afterwards.
pub(super) async fn run(
    config: EngineConfig,
    occupancy: Arc<Occupancy>,
    mut commands: mpsc::UnboundedReceiver<Command>,
    state: watch::Sender<State>,
    mut connect: Connect,
) {
    let policy = LossPolicy::of(&config);
    let end = match load(config.startup_silence, policy, &mut commands, &state, &mut connect).await {
        Ok((group, announced)) => {
            serve(config, occupancy, group, announced, connect, &mut commands, &state).await
        }
        Err(end) => end,
    };
    let why = match end {
        End::Drained => {
            state.send_replace(State::Draining);
            SHUTTING_DOWN.to_owned()
        }
        End::Failed(why) => {
            // Whoever ends the process says why.
            tracing::debug!("the engine failed: {why}");
            state.send_replace(State::Failed(why.clone()));
            format!("Engine failed: {why}")
        }
    };
    // Requests that were on their way.
    commands.close();
    while let Some(command) = commands.recv().await {
        if let Command::Submit { events, .. } = command {
            let _ = events.send(Event::Failed(Failure::NotStarted(why.clone())));
        }
    }
}

/// Serves requests until drained or lost for good.
async fn serve(
    config: EngineConfig,
    occupancy: Arc<Occupancy>,
    group: Group,
    announced: Announced,
    connect: Connect,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    state: &watch::Sender<State>,
) -> End {
    let limits = match Limits::new(&announced.ready) {
        Ok(limits) => limits,
        Err(error) => {
            if let Err(unreaped) = group.kill().await {
                tracing::error!("{unreaped}");
            }
            return End::Failed(error.to_string());
        }
    };
    let (batches, received) = mpsc::unbounded_channel();
    let dispatching = tokio::spawn(dispatch::run(received));
    let patience = Patience {
        startup: config.startup_silence,
        heartbeat: config.heartbeat_timeout,
        step: config.step_timeout,
    };
    let options = Options { prefix_cache: config.prefix_cache, ..Options::default() };
    let shards = Supervisor::new(connect, group, patience, &announced);
    let ready = Arc::new(announced.ready);
    let losses = Losses::new(LossPolicy::of(&config));
    let server = Server {
        shards,
        config,
        limits,
        ready: ready.clone(),
        scheduler: Scheduler::new(limits, options),
        pace: Pace::new(occupancy.clone()),
        occupancy,
        open: HashMap::new(),
        masks: MaskPool::new(),
        gathering: None,
        waiting: VecDeque::new(),
        sent: VecDeque::new(),
        had_nothing: true,
        batch: Batch::default(),
        batches,
        draining: None,
        losses,
        blamed: false,
        lost: None,
        shown: None,
        state,
    };
    server.occupancy.set_room(limits.max_sequences);
    state.send_replace(State::Ready(ready));
    let end = server.run(commands).await;
    // Every event is on its way to its request before the engine is said to have ended.
    if let Err(error) = dispatching.await {
        tracing::error!("the dispatching task failed: {error}");
    }
    end
}

struct Server<'a> {
    config: EngineConfig,
    limits: Limits,
    /// What the shards announced last.
    ready: Arc<Ready>,
    scheduler: Scheduler,
    shards: Supervisor,
    occupancy: Arc<Occupancy>,
    pace: Pace,
    open: HashMap<SeqId, Open>,
    masks: MaskPool,
    /// Set while nothing has happened but that some constrained sequences can go on and others soon can: until when they
    /// are waited for.
    gathering: Option<Instant>,
    /// Requests in the order of their arrival, with the time of it; the first ones may have started or ended.
    waiting: VecDeque<(SeqId, Instant)>,
    /// Steps in flight, oldest first.
    sent: VecDeque<Measured>,
    /// There was nothing to run when all steps were answered.
    had_nothing: bool,
    /// What is to be passed on to requests at the end of this turn.
    batch: Batch,
    batches: mpsc::UnboundedSender<Batch>,
    /// Once draining has begun, when it ends at the latest.
    draining: Option<Instant>,
    /// Losses in a row, without a sign of life between them.
    losses: Losses,
    /// The shards are being replaced because of a request that was found to be to blame.
    blamed: bool,
    /// When the shards were lost, until the first token after that.
    lost: Option<Instant>,
    /// What the gauges say.
    shown: Option<(Stats, Limits)>,
    state: &'a watch::Sender<State>,
}

impl Server<'_> {
    async fn run(mut self, commands: &mut mpsc::UnboundedReceiver<Command>) -> End {
        let mut has_handles = true;
        loop {
            // The shards first: while they compute, there is time for everything else.
            if self.gathering.is_none_or(|until| until <= Instant::now()) {
                self.gathering = None;
                self.send_steps();
            }
            self.expire();
            self.publish();
            if self.draining.is_some() && self.scheduler.is_idle() {
                break;
            }
            let alarm = self.alarm();
            tokio::select! {
                change = self.shards.next() => {
                    self.gathering = None;
                    if let Err(why) = self.take(change) {
                        return self.give_up(why).await;
                    }
                }
                command = commands.recv(), if has_handles => {
                    has_handles = command.is_some();
                    // Nobody can ask for anything any more without a handle.
                    self.obey(command.unwrap_or(Command::Drain));
                    // Requests that came together are planned together.
                    while let Ok(command) = commands.try_recv() {
                        self.obey(command);
                    }
                }
                advanced = self.masks.next() => {
                    self.release(advanced);
                    while let Some(advanced) = self.masks.try_next() {
                        self.release(advanced);
                    }
                    self.gather();
                }
                () = sleep_until(alarm) => {
                    if self.draining.is_some_and(|end| end <= Instant::now()) {
                        self.fail_all(SHUTTING_DOWN);
                    }
                }
            }
        }
        self.shards.stop(self.config.shutdown_grace).await;
        End::Drained
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { request, constraint, events, permit } => {
                self.submit(request, constraint, events, permit);
            }
            Command::Drain => self.drain(),
        }
    }

    /// When to look after the requests even if nothing happens.
    fn alarm(&self) -> Instant {
        let now = Instant::now();
        // Without shards nobody else notices that a client has left.
        let tick = if self.shards.is_up() { Duration::from_secs(3600) } else { TICK };
        let expiry =
            self.config.queue_timeout.and_then(|limit| self.waiting.front().map(|(_, at)| *at + limit));
        [Some(now + tick), expiry, self.draining, self.gathering].into_iter().flatten().min().unwrap_or(now)
    }

    /// Plans and sends as long as steps may be in flight and there is work.
    fn send_steps(&mut self) {
        if !self.shards.is_up() {
            self.cancel_abandoned();
            return;
        }
        while self.scheduler.in_flight() < STEPS_IN_FLIGHT {
            self.cancel_abandoned();
            let Some(Plan { step, admitted }) = self.scheduler.plan() else {
                self.had_nothing |= self.scheduler.in_flight() == 0 && self.scheduler.is_idle();
                break;
            };
            let waited_for = !std::mem::take(&mut self.had_nothing);
            self.sent.push_back(Measured::sent(&step, waited_for));
            self.shards.send(step);
            for admitted in admitted {
                self.started(admitted.sequence, admitted.cached_tokens);
            }
        }
        let stats = self.scheduler.stats();
        let room = if stats.waiting == 0 { self.limits.max_sequences - stats.running } else { 0 };
        self.occupancy.set_room(room);
    }

    /// Hands this turn's events over, and shows the gauges.
    fn publish(&mut self) {
        if !self.batch.is_empty() {
            // The dispatching task ends only after this sender is dropped.
            let _ = self.batches.send(std::mem::take(&mut self.batch));
        }
        // A client that leaves changes them without an event.
        let stats = self.scheduler.stats();
        if self.shown != Some((stats, self.limits)) {
            meter::show(&stats, &self.limits);
            self.shown = Some((stats, self.limits));
        }
    }

    /// Takes no more work. The loop ends when what there is has ended.
    fn drain(&mut self) {
        if self.draining.is_none() {
            self.draining = Some(Instant::now() + self.config.drain_timeout);
            self.state.send_replace(State::Draining);
        }
    }

    /// Takes in what has become of the shards.
    ///
    /// # Errors
    /// Why the engine cannot go on.
    fn take(&mut self, change: Change) -> Result<(), String> {
        match change {
            Change::Answer(output) => self.apply(output),
            Change::Alive => self.losses.progress(),
            Change::Lost => self.lose(),
            Change::Ended(loss) => {
                // A request that is to blame has failed alone: another group will not meet it.
                let blamed = std::mem::take(&mut self.blamed) && loss.cause == Cause::Shards;
                let decision = match blamed {
                    true => self.losses.blame_request(),
                    false => self.losses.add(&loss, Instant::now()),
                };
                self.follow(&loss, decision)?;
            }
            Change::Up(ready) => {
                self.losses.started();
                let (before, limits) = (self.limits, Limits::new(&ready).map_err(|error| error.to_string())?);
                if limits.num_blocks < before.num_blocks {
                    tracing::warn!(
                        "the KV cache of the new shards holds {} tokens, and held {} before: there is less free memory; \
                         requests that no longer fit fail",
                        limits.num_blocks * limits.block_size,
                        before.num_blocks * before.block_size,
                    );
                }
                self.limits = limits;
                self.ready = Arc::new(ready);
                meter::restarted();
                for (id, impossible) in self.scheduler.recover(self.limits) {
                    self.end(id, Failure::Broken(impossible.to_string()));
                }
                self.show(State::Ready(self.ready.clone()));
            }
        }
        Ok(())
    }

    /// Gives up after a loss, or has the next group started.
    fn follow(&mut self, loss: &Loss, decision: Decision) -> Result<(), String> {
        let (after, tell) = match decision {
            Decision::GiveUp(why) => return Err(why),
            Decision::Restart { after, tell } => (after, tell),
        };
        if tell {
            tracing::warn!(
                "lost the shards: {}; they are started again in {:.1} s, {} requests wait",
                loss.why,
                after.as_secs_f64(),
                self.open.len(),
            );
        }
        self.shards.rest(after);
        Ok(())
    }

    /// All that was sent is lost; the requests wait.
    fn lose(&mut self) {
        if let Some(id) = self.scheduler.lose() {
            self.blame(id);
            self.blamed = true;
        }
        self.lost.get_or_insert_with(Instant::now);
        self.sent.drain(..).for_each(Measured::lost);
        self.occupancy.set_room(0);
        self.show(State::Recovering(self.ready.clone()));
    }

    /// Tells everybody how the engine is, unless it is on its way out.
    fn show(&self, state: State) {
        if self.draining.is_none() {
            self.state.send_replace(state);
        }
    }

    fn apply(&mut self, output: StepOutput) {
        let times = StepTimes::of(&output);
        let outputs = match self.scheduler.apply(output) {
            Ok(outputs) => outputs,
            Err(malformed) => {
                self.shards.end(Lost::Nonsense(malformed.to_string()));
                return self.lose();
            }
        };
        if let Some(measured) = self.sent.pop_front() {
            measured.answered(times);
        }
        if !outputs.is_empty() {
            self.losses.progress();
            if let Some(lost) = self.lost.take() {
                meter::recovered(lost.elapsed());
                tracing::info!("the first token after {:.3} s without shards", lost.elapsed().as_secs_f64());
            }
        }
        for output in outputs {
            let id = output.sequence;
            match (&output.news, output.finish) {
                (News::Failed(failure), _) => {
                    self.row_failed(id, failure.clone());
                    continue;
                }
                (_, Some(_)) => drop(self.open.remove(&id)),
                (News::Token(sampled), None) => self.constrain(id, sampled.token),
                (News::Prompt(_) | News::Vector(_), None) => {}
            }
            self.batch.outputs.push(output);
        }
    }

    /// The shards cannot be brought back: the engine ends, and all requests with it.
    async fn give_up(mut self, why: String) -> End {
        self.fail_all(&format!("Engine failed: {why}"));
        self.publish();
        self.shards.stop(Duration::ZERO).await;
        End::Failed(why)
    }
}
