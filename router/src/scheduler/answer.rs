//! What a step in flight will answer, and what is wrong with an answer.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use millrace_proto::{PromptToken, RowError, RowErrorKind, Sampled, StepOutput, TokenLogprob};

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
    /// Positions of the prompt's tokens that are scored; none for most rows.
    pub(super) scores: Range<usize>,
    /// Set if nothing more is wanted of its sequence: what ends it.
    pub(super) end: Option<End>,
}

/// What ends a sequence without a new token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its prompt has been computed.
    Prompt,
    /// Its prompt's vector comes back.
    Vector,
}

/// Something that came back.
#[derive(Debug)]
pub struct Output {
    /// Whose.
    pub sequence: SeqId,
    /// What.
    pub news: News,
    /// Set on the last one, but for [`News::Failed`], which is always the last; the scheduler has forgotten the sequence then.
    pub finish: Option<Finish>,
}

/// Why a sequence cannot be run any further although the shards can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowFailure {
    /// The shards refuse the sequence; the text says what is wrong with it.
    #[error("{0}")]
    Refused(String),
    /// The model's logits or states are not finite; the text says which.
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

/// What a row of a step has brought.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// What the model makes of the next tokens of the prompt. The first token of a prompt is left out; it follows nothing. Empty
    /// only if it is the end.
    Prompt(Vec<PromptToken>),
    /// A new token.
    Token(Sampled),
    /// The prompt's vector, which is all there is.
    Vector(Vec<f32>),
    /// The sequence has failed, and it alone.
    Failed(RowFailure),
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
    /// Not one score for each token of a prompt that was to be scored.
    #[error("step {step} has not the scores that its rows ask for")]
    Scores { step: u64 },
    /// Not one vector for each prompt that was to become one.
    #[error("step {step} has not the vectors that its rows ask for")]
    Vectors { step: u64 },
    /// An error for a slot that has no row in the step, or two for one.
    #[error("step {step} has an error for slot {slot}, which has no row without one")]
    StrayError { step: u64, slot: u32 },
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
        let failed = self.failed(output)?;
        let rows = || self.rows.iter().filter(|row| !failed.contains_key(&row.slot.0));
        let samples = || rows().filter(|row| row.sample);
        let (expected, got) = (samples().count(), output.sampled.len());
        if expected != got {
            return Err(Malformed::Count { step, expected, got });
        }
        for (row, sampled) in samples().zip(&output.sampled) {
            if sampled.slot != row.slot.0 {
                return Err(Malformed::WrongSlot { step, expected: row.slot.0, got: sampled.slot });
            }
        }
        let scored = rows().filter(|row| !row.scores.is_empty());
        if !scored
            .map(|row| (row.slot.0, row.scores.len()))
            .eq(output.scored.iter().map(|of| (of.slot, of.tokens.len())))
        {
            return Err(Malformed::Scores { step });
        }
        let pooled = rows().filter(|row| row.end == Some(End::Vector));
        if !pooled.map(|row| row.slot.0).eq(output.pooled.iter().map(|of| of.slot)) {
            return Err(Malformed::Vectors { step });
        }
        let of_prompts = output.scored.iter().flat_map(|of| &of.tokens).flat_map(|token| &token.top);
        let of_new = output.sampled.iter().flat_map(|sampled| &sampled.top);
        let alternatives = of_new.chain(of_prompts).map(|top: &TokenLogprob| top.token);
        let mut tokens = output.sampled.iter().map(|sampled| sampled.token).chain(alternatives);
        match tokens.find(|&token| token as usize >= vocab_size) {
            Some(token) => Err(Malformed::UnknownToken { step, token, vocab_size }),
            None => Ok(()),
        }
    }

    /// The errors of an answer by slot: at most one for each row.
    fn failed<'a>(&self, output: &'a StepOutput) -> Result<HashMap<u32, &'a RowError>, Malformed> {
        let mut failed = HashMap::new();
        if output.errors.is_empty() {
            return Ok(failed);
        }
        let rows: HashSet<u32> = self.rows.iter().map(|row| row.slot.0).collect();
        for error in &output.errors {
            let slot = error.slot;
            if !rows.contains(&slot) || failed.insert(slot, error).is_some() {
                return Err(Malformed::StrayError { step: self.step, slot });
            }
        }
        Ok(failed)
    }
}
