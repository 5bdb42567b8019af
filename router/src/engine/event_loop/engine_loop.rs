//! The loop of the engine, and its state.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millrace_proto::{DiskEntry, Ready};
use millrace_scheduler::{PlannedStep, Scheduler, SchedulerLimits, SchedulerOptions, SchedulerStats, SeqId};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::adapter_places::AdapterPlaces;
use crate::engine::active_request::ActiveRequest;
use crate::engine::adapters::AdapterCommand;
use crate::engine::command::{EngineCommand, RestartReply};
use crate::engine::config::EngineConfig;
use crate::engine::constraint::MaskPool;
use crate::engine::departures::Departures;
use crate::engine::dispatch::EventBatch;
use crate::engine::event::EngineState;
use crate::engine::groups::{Groups, StateReporter};
use crate::engine::kept_adapters::KeptAdapter;
use crate::engine::metrics::{GroupMetrics, StepTimer};
use crate::engine::occupancy::{Occupancy, StartRate};
use crate::engine::restart_policy::{LossTracker, RestartPolicy};
use crate::engine::step_pace::StepPace;
use crate::engine::supervisor::{Supervisor, SupervisorEvent};

/// Maximum number of steps in flight. With 2 the shards do not wait for the router.
const STEPS_IN_FLIGHT: usize = 2;

pub(super) const SHUTTING_DOWN: &str = "Server is shutting down";

/// The state that the loop shares with the handles, apart from the commands.
pub(in crate::engine) struct HandleLinks {
    /// The counters that the handles read.
    pub(in crate::engine) occupancy: Arc<Occupancy>,
    /// Wakes the loop when the reader of a request has left.
    pub(in crate::engine) departures: Departures,
    /// The groups of shards of the engine.
    pub(in crate::engine) groups: Weak<Groups>,
    /// The number of the group that this loop runs.
    pub(in crate::engine) group: usize,
    /// Number of groups.
    pub(in crate::engine) count: usize,
}

/// Where the loop reports its state and its results.
pub(super) struct EngineOutputs<'a> {
    /// The counters and the signal that the handles share.
    pub(super) links: HandleLinks,
    /// The dispatching task.
    pub(super) batches: mpsc::UnboundedSender<EventBatch>,
    /// The state of the engine.
    pub(super) state: &'a StateReporter,
}

/// The state of the loop.
pub(super) struct EngineLoop<'a> {
    pub(super) config: EngineConfig,
    pub(super) limits: SchedulerLimits,
    /// The last announcement of the shards.
    pub(super) ready: Arc<Ready>,
    pub(super) scheduler: Scheduler,
    pub(super) shards: Supervisor,
    pub(super) adapters: AdapterPlaces,
    pub(super) occupancy: Arc<Occupancy>,
    pub(super) departures: Departures,
    /// The groups of the engine; empty when no handle is left.
    pub(super) groups: Weak<Groups>,
    /// The number of this group.
    pub(super) group: usize,
    pub(super) start_rate: StartRate,
    pub(super) requests: HashMap<SeqId, ActiveRequest>,
    pub(super) masks: MaskPool,
    /// Set while some constrained sequences have their masks and others will have theirs soon: the
    /// time until which the next step waits for them.
    pub(super) masks_awaited_until: Option<Instant>,
    /// Set while the shards wait for the masks of the oldest step: the time at which those that are
    /// known are sent.
    pub(super) masks_due: Option<Instant>,
    /// Requests in the order of their arrival, with its time. The first ones may have started or
    /// ended.
    pub(super) arrivals: VecDeque<(SeqId, Instant)>,
    /// Timers of the steps in flight, oldest first.
    pub(super) sent: VecDeque<StepTimer>,
    /// When the next step is sent.
    pub(super) pace: StepPace,
    /// Whether there was nothing to run when all steps had been answered.
    pub(super) was_idle: bool,
    /// Events to be sent to requests at the end of this iteration.
    pub(super) batch: EventBatch,
    batches: mpsc::UnboundedSender<EventBatch>,
    /// The deadline of draining, if draining has begun.
    pub(super) drain_deadline: Option<Instant>,
    pub(super) losses: LossTracker,
    /// Whether the shards are being replaced because of a request that caused the loss.
    pub(super) request_was_blamed: bool,
    /// Time of the loss of the shards, until the first token after it.
    pub(super) lost_since: Option<Instant>,
    /// Receives the result of the restart that was asked for.
    pub(super) restart: Option<RestartReply>,
    /// The values of the gauges.
    shown: Option<(SchedulerStats, SchedulerLimits)>,
    metrics: GroupMetrics,
    pub(super) state: &'a StateReporter,
}

impl<'a> EngineLoop<'a> {
    /// A loop over shards that have announced `ready`.
    pub(super) fn new(
        config: EngineConfig,
        shards: Supervisor,
        limits: SchedulerLimits,
        ready: Arc<Ready>,
        outputs: EngineOutputs<'a>,
    ) -> Self {
        let EngineOutputs { links, batches, state } = outputs;
        let HandleLinks { occupancy, departures, groups, group, count } = links;
        occupancy.set_free_places(group, limits.max_sequences);
        let options = SchedulerOptions {
            prefix_cache: config.prefix_cache,
            cache_events: config.kv_events.is_some(),
            schedule: config.schedule,
            drafts: config.drafts,
            earlier_tokens: config.earlier_tokens,
            always_draft: config.always_draft,
            target_micros: config.target_itl.as_secs_f64() * 1e6,
            ..SchedulerOptions::default()
        };
        let mut scheduler = Scheduler::new(limits, options);
        scheduler.note_warm_up(ready.warm_up_tokens, ready.warm_up_micros);
        scheduler.note_draft_warm_up(ready.draft_micros, ready.draft_read_nanos);
        EngineLoop {
            losses: LossTracker::new(RestartPolicy::new(&config)),
            metrics: GroupMetrics::new((count > 1).then_some(group)),
            config,
            limits,
            ready,
            scheduler,
            shards,
            adapters: AdapterPlaces::default(),
            start_rate: StartRate::new(occupancy.clone(), group),
            occupancy,
            departures,
            groups,
            group,
            requests: HashMap::new(),
            masks: MaskPool::new(),
            masks_awaited_until: None,
            masks_due: None,
            arrivals: VecDeque::new(),
            sent: VecDeque::new(),
            pace: StepPace::new(),
            was_idle: true,
            batch: EventBatch::default(),
            batches,
            drain_deadline: None,
            request_was_blamed: false,
            lost_since: None,
            restart: None,
            shown: None,
            state,
        }
    }

    /// Uses the disk cache that the shards have announced, if there is one, with its entries.
    pub(super) fn open_disk_cache(&mut self, entries: &[DiskEntry]) {
        self.scheduler.open_disk_cache(self.ready.disk_slots, entries);
    }

    /// The same loop over shards that have loaded these adapters.
    pub(super) fn with_adapters(mut self, adapters: Vec<KeptAdapter>) -> Self {
        self.adapters = AdapterPlaces::new(adapters);
        self
    }

    /// Serves requests until the engine is drained.
    ///
    /// # Errors
    /// The reason for which the shards cannot be replaced.
    pub(super) async fn run(
        mut self,
        commands: &mut mpsc::UnboundedReceiver<EngineCommand>,
    ) -> Result<(), String> {
        let mut has_handles = true;
        loop {
            // The shards may be waiting for masks.
            self.send_masks();
            self.end_for_restart();
            self.move_if_lost();
            // Steps are sent next: while the shards compute, there is time for everything else.
            if self.masks_awaited_until.is_none_or(|until| until <= Instant::now()) {
                self.masks_awaited_until = None;
                self.send_steps();
            }
            self.expire_queued();
            self.publish();
            if self.is_drained() {
                break;
            }
            let alarm = self.next_alarm();
            tokio::select! {
                event = self.shards.next() => {
                    if !matches!(event, SupervisorEvent::MasksDue(_)) {
                        self.masks_awaited_until = None;
                    }
                    if let Err(reason) = self.on_supervisor_event(event) {
                        return Err(self.give_up(reason).await);
                    }
                }
                command = commands.recv(), if has_handles => {
                    has_handles = command.is_some();
                    // Without handles no request can be submitted any more.
                    self.on_command(command.unwrap_or(EngineCommand::Drain));
                    // Requests that arrived together are planned together.
                    while let Ok(command) = commands.try_recv() {
                        self.on_command(command);
                    }
                }
                mask = self.masks.next() => {
                    self.on_mask(mask);
                    while let Some(mask) = self.masks.try_next() {
                        self.on_mask(mask);
                    }
                    self.await_other_masks();
                }
                // Steps in flight may take long on a slow device. The places of requests whose
                // readers have left must not wait for their answers.
                () = self.departures.next(self.group) => {
                    self.cancel_abandoned();
                    self.share_queue();
                }
                () = sleep_until(alarm) => {
                    if self.drain_deadline.is_some_and(|end| end <= Instant::now()) {
                        self.fail_all(SHUTTING_DOWN);
                    }
                }
            }
        }
        self.shards.stop(self.config.shutdown_grace).await;
        Ok(())
    }

    /// Whether draining has begun and nothing is left to do. Blocks that a later server can use are
    /// written before, while there is time.
    fn is_drained(&self) -> bool {
        let writes = self.config.kv_persist && self.shards.is_running() && self.scheduler.has_disk_work();
        self.scheduler.is_idle()
            && self.drain_deadline.is_some_and(|deadline| !writes || deadline <= Instant::now())
    }

    fn on_command(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Submit { request, constraint, events, permit } => {
                self.submit(request, constraint, events, permit);
            }
            EngineCommand::Adopt(moved) => self.adopt(*moved),
            EngineCommand::Restart(reply) => self.begin_restart(reply),
            EngineCommand::Adapter(AdapterCommand::Load(command)) => self.load_adapter(command),
            EngineCommand::Adapter(AdapterCommand::Free(id)) => self.free_adapter(id),
            EngineCommand::Drain => self.drain(),
        }
    }

    /// The time at which the loop continues even if no event comes.
    fn next_alarm(&self) -> Instant {
        let now = Instant::now();
        let never = now + Duration::from_secs(3600);
        let expiry =
            self.config.queue_timeout.and_then(|limit| self.arrivals.front().map(|(_, at)| *at + limit));
        // A step that is due already has been sent, or there was nothing to send.
        let next_send = Some(self.pace.next_send()).filter(|at| *at > now);
        let alarms = [expiry, self.drain_deadline, self.masks_awaited_until, self.masks_due, next_send];
        alarms.into_iter().flatten().min().unwrap_or(never)
    }

    /// Plans and sends steps while there is work and steps are due.
    fn send_steps(&mut self) {
        if !self.shards.is_running() || self.restart.is_some() {
            return;
        }
        while self.scheduler.in_flight() < STEPS_IN_FLIGHT && self.pace.next_send() <= Instant::now() {
            self.cancel_abandoned();
            let Some(PlannedStep { step, admitted, duration }) = self.scheduler.plan() else {
                self.was_idle |= self.scheduler.in_flight() == 0 && self.scheduler.is_idle();
                break;
            };
            let waited_for = !std::mem::take(&mut self.was_idle);
            self.sent.push_back(StepTimer::start(&step, waited_for));
            self.shards.send(step);
            self.pace.sent(duration, Instant::now());
            for admitted in admitted {
                self.note_start(admitted.sequence, admitted.cached_tokens);
            }
        }
        let stats = self.scheduler.stats();
        let free = if stats.waiting == 0 { self.limits.max_sequences - stats.running } else { 0 };
        self.occupancy.set_free_places(self.group, free);
    }

    /// Sends the events of this iteration to the dispatching task and to the subscribers to the
    /// prefix cache, and updates the gauges.
    pub(super) fn publish(&mut self) {
        if !self.batch.is_empty() {
            // The dispatching task ends only after this sender has been dropped.
            let _ = self.batches.send(std::mem::take(&mut self.batch));
        }
        if let Some(kv_events) = &self.config.kv_events {
            kv_events.publish(&self.scheduler.take_cache_events());
        }
        // A cancelled request changes the gauges without an event.
        let stats = self.scheduler.stats();
        if self.shown != Some((stats, self.limits)) {
            self.metrics.show(&stats, &self.limits);
            self.shown = Some((stats, self.limits));
        }
    }

    /// Begins to drain: no more requests are accepted, and the loop ends when the others have
    /// ended.
    fn drain(&mut self) {
        if self.drain_deadline.is_none() {
            self.drain_deadline = Some(Instant::now() + self.config.drain_timeout);
            self.state.set(EngineState::Draining);
        }
    }

    /// Ends all requests and the shards, because the shards cannot be replaced. Returns the reason.
    async fn give_up(mut self, reason: String) -> String {
        self.fail_all(&format!("Engine failed: {reason}"));
        self.publish();
        self.shards.stop(Duration::ZERO).await;
        reason
    }
}
