//! Handles the events of the supervisor: answers, losses, and new groups.

use std::sync::Arc;

use millrace_proto::{Ready, StepOutput};
use millrace_scheduler::{SchedulerLimits, SequenceEvent};
use tokio::time::Instant;

use super::engine_loop::EngineLoop;
use crate::engine::event::EngineState;
use crate::engine::event::GenerationFailure;
use crate::engine::kept_adapters::LostAdapter;
use crate::engine::loss::{GroupLoss, LossCause};
use crate::engine::metrics::{self, StepTimer, StepTimes};
use crate::engine::restart_policy::RestartDecision;
use crate::engine::supervisor::{GroupFailure, SupervisorEvent};

impl EngineLoop<'_> {
    /// Handles an event of the supervisor.
    ///
    /// # Errors
    /// The reason for which the engine cannot continue.
    pub(super) fn on_supervisor_event(&mut self, event: SupervisorEvent) -> Result<(), String> {
        match event {
            SupervisorEvent::Answer(output) => self.apply(output),
            SupervisorEvent::MasksDue(step) => self.on_masks_due(step),
            SupervisorEvent::AdapterLoaded(rank, answer) => self.on_adapter_loaded(rank, answer),
            SupervisorEvent::Settled => self.losses.note_progress(),
            SupervisorEvent::Lost => self.on_loss(),
            SupervisorEvent::Ended(loss) => self.on_group_ended(&loss)?,
            SupervisorEvent::Ready(ready, lost) => self.on_new_group(*ready, lost)?,
        }
        Ok(())
    }

    /// Applies the answer to the oldest step.
    fn apply(&mut self, output: StepOutput) {
        let times = StepTimes::of(&output);
        let outputs = match self.scheduler.apply(output) {
            Ok(outputs) => outputs,
            Err(malformed) => {
                self.shards.end_group(GroupFailure::MalformedAnswer(malformed.to_string()));
                return self.on_loss();
            }
        };
        if let Some(timer) = self.sent.pop_front() {
            timer.answered(times);
        }
        self.pace.answered(Instant::now());
        if !outputs.is_empty() {
            self.losses.note_progress();
            if let Some(since) = self.lost_since.take() {
                metrics::recovered(since.elapsed());
                tracing::info!(
                    "recovered: first token {:.3} s after the loss",
                    since.elapsed().as_secs_f64()
                );
            }
        }
        for output in outputs {
            let id = output.sequence;
            match (&output.event, output.finish) {
                (SequenceEvent::Failed(failure), _) => {
                    self.fail_row(id, failure.clone());
                    continue;
                }
                (_, Some(_)) => drop(self.requests.remove(&id)),
                (SequenceEvent::Token(sampled), None) => self.advance_constraint(id, sampled.token),
                (SequenceEvent::Prompt(_) | SequenceEvent::Vector(_), None) => {}
            }
            self.batch.outputs.push(output);
        }
    }

    /// Handles the loss of all steps in flight. The requests wait for the next group.
    pub(super) fn on_loss(&mut self) {
        if let Some(id) = self.scheduler.lose() {
            self.fail_blamed(id);
            self.request_was_blamed = true;
        }
        self.lost_since.get_or_insert_with(Instant::now);
        self.masks_due = None;
        self.abandon_adapter_load();
        self.sent.drain(..).for_each(StepTimer::lost);
        self.pace.lost();
        self.occupancy.set_free_places(self.group, 0);
        self.forget_prefixes();
        self.show_state(EngineState::Recovering(self.ready.clone()));
    }

    /// Counts a loss, and has the next group started or gives up.
    ///
    /// # Errors
    /// The reason for which the engine gives up.
    fn on_group_ended(&mut self, loss: &GroupLoss) -> Result<(), String> {
        // The request that caused the loss has failed, so the next group will not get it.
        let blamed = std::mem::take(&mut self.request_was_blamed) && loss.cause == LossCause::Shards;
        let decision = match blamed {
            true => self.losses.blame_request(),
            false => self.losses.add(loss, Instant::now()),
        };
        let (after, log) = match decision {
            RestartDecision::GiveUp(reason) => return self.try_later_or_give_up(reason),
            RestartDecision::Restart { after, log } => (after, log),
        };
        if log {
            tracing::warn!(
                "lost the shards: {}; they are started again in {:.1} s, {} requests wait",
                loss.reason,
                after.as_secs_f64(),
                self.requests.len(),
            );
        }
        self.shards.pause(after);
        Ok(())
    }

    /// Continues all requests with a new group.
    ///
    /// # Errors
    /// The group has announced a limit of zero.
    fn on_new_group(&mut self, mut ready: Ready, lost: Vec<LostAdapter>) -> Result<(), String> {
        self.losses.note_start();
        let (before, limits) =
            (self.limits, SchedulerLimits::new(&ready).map_err(|error| error.to_string())?);
        if limits.num_blocks < before.num_blocks {
            tracing::warn!(
                "the KV cache of the new shards holds {} tokens instead of {}, because less memory is free; requests \
                 that no longer fit fail",
                limits.num_blocks * limits.block_size,
                before.num_blocks * before.block_size,
            );
        }
        self.limits = limits;
        let entries = std::mem::take(&mut ready.disk_entries);
        self.ready = Arc::new(ready);
        metrics::restarted();
        self.lose_adapters(lost);
        self.scheduler.note_warm_up(self.ready.warm_up_tokens, self.ready.warm_up_micros);
        self.scheduler.note_draft_warm_up(self.ready.draft_micros, self.ready.draft_read_nanos);
        for (id, infeasible) in self.scheduler.recover(self.limits) {
            self.fail(id, GenerationFailure::Broken(infeasible.to_string()));
        }
        self.open_disk_cache(&entries);
        self.show_state(EngineState::Ready(self.ready.clone()));
        self.end_restart(Ok(()));
        // Requests of other groups that are lost may continue here.
        self.departures.signal();
        Ok(())
    }

    /// Publishes the state of the engine, unless it is draining.
    fn show_state(&self, state: EngineState) {
        if self.drain_deadline.is_none() {
            self.state.set(state);
        }
    }
}
