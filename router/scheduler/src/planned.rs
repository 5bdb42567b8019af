//! The result of planning.

use std::time::Duration;

use millrace_proto::Step;

use super::id::SeqId;

/// A step to be sent to the shards.
#[derive(Debug)]
pub struct PlannedStep {
    /// The message. It has at least one row, or copies of the disk cache.
    pub step: Step,
    /// The sequences that left the queue for this step. A preempted sequence leaves the queue again
    /// later.
    pub admitted: Vec<Admitted>,
    /// The predicted time of the step; zero until the shards have reported the time of one.
    pub duration: Duration,
}

/// A sequence that left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// The sequence.
    pub sequence: SeqId,
    /// Number of its first tokens that were found in the prefix cache. If the sequence never ran
    /// before, these are tokens of its prompt.
    pub cached_tokens: usize,
}
