//! A request that the scheduler has.

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::engine::constraint::TrackedConstraint;
use crate::engine::event::GenerationEvent;
use crate::engine::occupancy::Permit;

/// A request from its submission to its end.
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
