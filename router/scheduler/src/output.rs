//! Results of the scheduler: planned steps, and the results of a step for its sequences.

use std::time::Duration;

use millrace_proto::{PromptToken, RowError, RowErrorKind, Sampled, Step};

use super::id::SeqId;
use super::request::Finish;

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

/// A result for one sequence.
#[derive(Debug)]
pub struct SequenceOutput {
    /// The sequence.
    pub sequence: SeqId,
    /// The result.
    pub event: SequenceEvent,
    /// The drafts that were verified to get this token. The first token of a row has all of the
    /// row; other results have none.
    pub drafts: DraftCounts,
    /// The reason for which the sequence ended, with its last result. It is not set with
    /// [`SequenceEvent::Failed`], which is always the last one. The scheduler has removed the
    /// sequence in both cases.
    pub finish: Option<Finish>,
}

/// Numbers of guessed tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Guesses that were verified.
    pub verified: u32,
    /// Guesses that were right, and are tokens of the answer.
    pub accepted: u32,
}

impl std::ops::AddAssign for DraftCounts {
    fn add_assign(&mut self, other: DraftCounts) {
        self.verified += other.verified;
        self.accepted += other.accepted;
    }
}

/// One result of a row. A row that the shards answer with several tokens gives one event per token.
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceEvent {
    /// Log-probabilities of the next tokens of the prompt. The first token of a prompt has none,
    /// because no token precedes it. The list is empty only if this event ends the sequence.
    Prompt(Vec<PromptToken>),
    /// A generated token.
    Token(Sampled),
    /// The vector of the prompt. It is the only result of its sequence.
    Vector(Vec<f32>),
    /// The sequence has failed. Other sequences are not affected.
    Failed(RowFailure),
}

/// Why a sequence failed although the shards keep running.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowFailure {
    /// The shards refuse the sequence; the text gives the reason.
    #[error("{0}")]
    Refused(String),
    /// Logits or states of the model are not finite; the text says which.
    #[error("{0}")]
    NotFinite(String),
}

impl RowFailure {
    pub(super) fn new(error: RowError) -> Self {
        match error.kind() {
            RowErrorKind::NotFinite => RowFailure::NotFinite(error.message),
            RowErrorKind::Refused | RowErrorKind::Unspecified => RowFailure::Refused(error.message),
        }
    }
}
