//! Results of a step for its sequences.

use millrace_proto::{PromptToken, RowError, RowErrorKind, Sampled};

use super::id::SeqId;
use super::request::Finish;

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
