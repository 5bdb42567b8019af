//! What a step in flight will answer, and what is wrong with an answer.

use millrace_proto::{Sampled, StepOutput};

use super::request::Finish;
use super::sequence::{SeqId, Slot};

/// A step that was planned and not yet answered.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) step: u64,
    /// In the order of the step's rows.
    pub(super) rows: Vec<InFlightRow>,
}

/// A row of such a step.
#[derive(Debug)]
pub(super) struct InFlightRow {
    /// Whose row; it may have left its slot by the time of the answer.
    pub(super) sequence: SeqId,
    pub(super) slot: Slot,
    /// Positions that are computed when the step has been answered.
    pub(super) computed: usize,
    pub(super) sample: bool,
}

/// A token that came back.
#[derive(Debug)]
pub struct Output {
    /// Whose.
    pub sequence: SeqId,
    /// The token.
    pub sampled: Sampled,
    /// Set on the last one; the scheduler has forgotten the sequence then.
    pub finish: Option<Finish>,
}

/// An answer that no step has asked for. The shard that gave it cannot be trusted any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum Malformed {
    /// There is no step to answer.
    #[error("an answer to step {0}, but no step is in flight")]
    Unasked(u64),
    /// A step was left out, or answered twice.
    #[error("an answer to step {got} where step {expected} is due")]
    OutOfOrder { expected: u64, got: u64 },
    /// Not one token for each row that samples.
    #[error("{got} tokens for step {step}, which samples {expected}")]
    Count { step: u64, expected: usize, got: usize },
    /// The tokens are not in the order of the rows.
    #[error("step {step} has a token for slot {got} where slot {expected} is due")]
    WrongSlot { step: u64, expected: u32, got: u32 },
    /// A token that the model does not have.
    #[error("step {step} sampled token {token}, which is outside the vocabulary of {vocab_size}")]
    UnknownToken { step: u64, token: u32, vocab_size: usize },
}

impl InFlight {
    /// Whether `output` is the answer to this step.
    pub(super) fn check(&self, output: &StepOutput, vocab_size: usize) -> Result<(), Malformed> {
        let step = self.step;
        if output.step != step {
            return Err(Malformed::OutOfOrder { expected: step, got: output.step });
        }
        let (expected, got) = (self.samples().count(), output.sampled.len());
        if expected != got {
            return Err(Malformed::Count { step, expected, got });
        }
        for (row, sampled) in self.samples().zip(&output.sampled) {
            if sampled.slot != row.slot.0 {
                return Err(Malformed::WrongSlot { step, expected: row.slot.0, got: sampled.slot });
            }
            let tokens = sampled.top.iter().map(|top| top.token).chain([sampled.token]);
            if let Some(token) = tokens.into_iter().find(|&token| token as usize >= vocab_size) {
                return Err(Malformed::UnknownToken { step, token, vocab_size });
            }
        }
        Ok(())
    }

    /// The rows that a token comes back for.
    pub(super) fn samples(&self) -> impl Iterator<Item = &InFlightRow> {
        self.rows.iter().filter(|row| row.sample)
    }
}
