//! A request that a group of shards runs, and its way to another group.

use millrace_scheduler::MovedSequence;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::constraint::TrackedConstraint;
use super::event::{GenerationEvent, GenerationFailure};
use super::occupancy::Permit;

/// A request that the scheduler of a group has.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    /// Sends events directly, and tells whether the receiver has been dropped.
    pub(super) events: mpsc::UnboundedSender<GenerationEvent>,
    /// Time of the submission.
    pub(super) queued: Instant,
    /// Whether the request has left the queue.
    pub(super) started: bool,
    pub(super) permit: Permit,
    /// The constraint, except while the next mask is being computed. `None` for a request without a
    /// constraint.
    pub(super) constraint: Option<TrackedConstraint>,
    /// Number of tokens that have come back, if the request is constrained.
    pub(super) generated: usize,
}

/// A request between two groups of shards.
#[derive(Debug)]
pub struct MovedRequest {
    /// The request, as clients and limits see it.
    pub(super) request: ActiveRequest,
    /// The request, as shards see it.
    pub(super) sequence: MovedSequence,
}

impl MovedRequest {
    /// Fails the request, because no group can continue it.
    pub(super) fn fail(self, reason: &str) {
        let ActiveRequest { events, started, .. } = self.request;
        let failure = match started {
            true => GenerationFailure::Broken(reason.to_owned()),
            false => GenerationFailure::NotStarted(reason.to_owned()),
        };
        let _ = events.send(GenerationEvent::Failed(failure));
    }
}
