//! Masks of constrained requests: they are computed beside the steps, and given to the scheduler or
//! sent after their step.

use std::time::Duration;

use millrace_proto::rules::is_mask_or_free;
use millrace_proto::to_shard;
use millrace_scheduler::{InfeasibleRequest, SeqId};
use tokio::time::Instant;

use super::engine_loop::EngineLoop;
use crate::engine::constraint::MaskResult;
use crate::engine::event::GenerationFailure;

/// Maximum time that constrained sequences with a mask wait for other sequences whose masks will
/// come soon. A step for each of them would waste time.
const MASK_WAIT: Duration = Duration::from_millis(2);

impl EngineLoop<'_> {
    /// Starts to compute the mask after a new token, if the request is constrained.
    pub(super) fn advance_constraint(&mut self, id: SeqId, token: u32) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let Some(constraint) = request.constraint.take() {
            request.generated += 1;
            self.masks.advance(id, request.generated, token, constraint);
        }
    }

    /// Gives the scheduler the mask after a token.
    pub(super) fn on_mask(&mut self, mask: MaskResult) {
        let MaskResult { id, generated, result, .. } = mask;
        // The request may have been cancelled meanwhile.
        let Some(request) = self.requests.get_mut(&id) else { return };
        match result {
            Ok((_, mask)) if !is_mask_or_free(&mask, self.limits.vocab_size) => {
                self.fail(id, GenerationFailure::Constraint(InfeasibleRequest::EmptyMask.to_string()));
            }
            Ok((constraint, mask)) => {
                request.constraint = Some(constraint);
                self.scheduler.release(id, generated, mask);
            }
            Err(reason) => self.fail(id, GenerationFailure::Constraint(reason)),
        }
    }

    /// Delays the next step for other masks that will come soon. Sequences that run ahead, or have
    /// no constraint, are in the steps in flight, so they do not wait.
    pub(super) fn await_other_masks(&mut self) {
        match self.masks.is_busy() {
            true => _ = self.masks_awaited_until.get_or_insert_with(|| Instant::now() + MASK_WAIT),
            false => self.masks_awaited_until = None,
        }
    }

    /// Notes that the shards have computed the forward pass of a step and wait for its masks. If
    /// all rows of the step need a mask, nobody else waits, so the masks get some more time.
    pub(super) fn on_masks_due(&mut self, step: u64) {
        // The masks may have been sent meanwhile.
        if self.scheduler.step_without_masks() == Some(step) {
            let others_wait = self.scheduler.others_wait_for_masks();
            let grace = if others_wait { Duration::ZERO } else { MASK_WAIT };
            self.masks_due = Some(Instant::now() + grace);
        }
    }

    /// Sends the masks that follow the oldest step, as soon as all of them are known, or those that
    /// are known when the shards cannot wait any longer.
    pub(super) fn send_masks(&mut self) {
        let are_due = self.masks_due.is_some_and(|due| due <= Instant::now());
        if let Some(masks) = self.scheduler.masks(are_due) {
            self.masks_due = None;
            self.shards.send_message(to_shard::Message::Masks(masks));
        }
    }
}
