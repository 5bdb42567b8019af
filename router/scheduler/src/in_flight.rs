//! Steps in flight, and the check that an answer matches its step.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use millrace_proto::{RowError, Sampled, StepOutput, TokenLogprob};

use super::cache::CheckpointId;
use super::cost_model::StepLoad;
use super::disk_copies::CopiesInFlight;
use super::draft_source::RowDrafts;
use super::id::{SeqId, SlotId};

/// A step that was planned and has not been answered.
#[derive(Debug)]
pub(super) struct StepInFlight {
    pub(super) step: u64,
    /// In the order of the step's rows.
    pub(super) rows: Vec<RowInFlight>,
    /// The load that the time of the step belongs to; empty if its time says nothing about others.
    pub(super) load: StepLoad,
    /// The copies between the KV cache and the disk cache.
    pub(super) copies: CopiesInFlight,
    /// Whether masks follow the step that have not been sent.
    pub(super) awaits_masks: bool,
}

/// A row of a step in flight.
#[derive(Debug)]
pub(super) struct RowInFlight {
    /// The sequence of the row. It may have left its slot by the time of the answer.
    pub(super) sequence: SeqId,
    pub(super) slot: SlotId,
    /// Number of positions that are computed before the row.
    pub(super) start: usize,
    /// Number of positions that are computed when the step has been answered, without drafts.
    pub(super) computed: usize,
    /// Whether the answer has a token of the row: it samples, and is not deferred.
    pub(super) samples: bool,
    /// The drafts of the row.
    pub(super) drafts: RowDrafts,
    /// Whether the mask of the row follows the step.
    pub(super) mask_follows: bool,
    /// Whether the row is not sampled, because its mask came late.
    pub(super) deferred: bool,
    /// Positions of the prompt's tokens that are scored; empty for most rows.
    pub(super) scores: Range<usize>,
    /// The result that ends the sequence, if the row gives the last result without sampling a
    /// token.
    pub(super) final_result: Option<FinalResult>,
    /// The checkpoint in which the recurrent states after the row are saved.
    pub(super) saves: Option<CheckpointId>,
}

/// A result that ends a sequence without a new token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinalResult {
    /// The prompt has been computed.
    Prompt,
    /// The vector of the prompt.
    Vector,
}

/// An answer that does not match its step. The shard that gave it cannot be trusted any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum MalformedAnswer {
    /// No step is in flight.
    #[error("an answer to step {0}, but no step is in flight")]
    NoStepInFlight(u64),
    /// The answer is for another step than the oldest one in flight.
    #[error("an answer to step {got} instead of step {expected}")]
    OutOfOrder { expected: u64, got: u64 },
    /// The answer comes before the masks of the step.
    #[error("an answer to step {step} before its masks")]
    BeforeMasks { step: u64 },
    /// A row that samples has no token, or there are more tokens than rows that sample.
    #[error("{got} tokens for step {step}, which has {expected} rows that sample")]
    TokenCount { step: u64, expected: usize, got: usize },
    /// The number of scores differs from the number of prompt tokens to be scored.
    #[error("step {step} does not have the scores that its rows ask for")]
    Scores { step: u64 },
    /// The vectors differ from those that the rows ask for.
    #[error("step {step} does not have the vectors that its rows ask for")]
    Vectors { step: u64 },
    /// An error for a slot that has no row in the step, or two errors for one slot.
    #[error("step {step} has an error for slot {slot}, which has no row or already has an error")]
    StrayError { step: u64, slot: u32 },
    /// The tokens are not in the order of the rows.
    #[error("step {step} has a token for slot {got} instead of slot {expected}")]
    WrongSlot { step: u64, expected: u32, got: u32 },
    /// The tokens of a row are not the ones that its drafts lead to.
    #[error("step {step} has tokens for slot {slot} that do not follow from its drafts")]
    Drafts { step: u64, slot: u32 },
    /// Slots without drafts that are not rows with drafts of the draft model, in their order.
    #[error("step {step} names rows without drafts that are to have no drafts of a model")]
    Undrafted { step: u64 },
    /// Failed reads that are not reads of the step, once each and in order.
    #[error("step {step} reports failed reads from disk that do not match its reads")]
    DiskReads { step: u64 },
    /// A token that is not in the model's vocabulary.
    #[error("step {step} sampled token {token}, which is outside the vocabulary of {vocab_size}")]
    UnknownToken { step: u64, token: u32, vocab_size: usize },
}

impl StepInFlight {
    /// A step with these rows.
    pub(super) fn new(step: u64, rows: Vec<RowInFlight>, load: StepLoad, copies: CopiesInFlight) -> Self {
        let awaits_masks = rows.iter().any(|row| row.mask_follows);
        StepInFlight { step, rows, load, copies, awaits_masks }
    }

    /// The rows whose masks follow.
    pub(super) fn late_rows(&self) -> impl Iterator<Item = &RowInFlight> {
        self.rows.iter().filter(|row| row.mask_follows)
    }

    /// Forgets the drafts of the rows in these slots, which had none.
    pub(super) fn drop_drafts(&mut self, slots: &[u32]) {
        let rows = self.rows.iter_mut().filter(|row| slots.contains(&row.slot.0));
        rows.for_each(|row| row.drafts = RowDrafts::default());
    }

    /// Checks that `output` is an answer to this step.
    pub(super) fn check(&self, output: &StepOutput, vocab_size: usize) -> Result<(), MalformedAnswer> {
        let step = self.step;
        if output.step != step {
            return Err(MalformedAnswer::OutOfOrder { expected: step, got: output.step });
        }
        if self.awaits_masks {
            return Err(MalformedAnswer::BeforeMasks { step });
        }
        let failed = &output.failed_disk_reads;
        let is_ordered = failed.is_sorted_by(|a, b| a < b);
        if !is_ordered || failed.last().is_some_and(|&last| last as usize >= self.copies.reads.len()) {
            return Err(MalformedAnswer::DiskReads { step });
        }
        let failed = self.check_errors(output)?;
        let rows = || self.rows.iter().filter(|row| !failed.contains_key(&row.slot.0));
        check_tokens(step, rows().filter(|row| row.samples), output)?;
        let mut drafted = self.rows.iter().filter(|row| row.drafts.of_model() > 0);
        if !output.undrafted.iter().all(|slot| drafted.any(|row| row.slot.0 == *slot)) {
            return Err(MalformedAnswer::Undrafted { step });
        }
        let scored = rows().filter(|row| !row.scores.is_empty());
        if !scored
            .map(|row| (row.slot.0, row.scores.len()))
            .eq(output.scored.iter().map(|scored| (scored.slot, scored.tokens.len())))
        {
            return Err(MalformedAnswer::Scores { step });
        }
        let pooled = rows().filter(|row| row.final_result == Some(FinalResult::Vector));
        if !pooled.map(|row| row.slot.0).eq(output.pooled.iter().map(|pooled| pooled.slot)) {
            return Err(MalformedAnswer::Vectors { step });
        }
        match all_tokens(output).find(|&token| token as usize >= vocab_size) {
            Some(token) => Err(MalformedAnswer::UnknownToken { step, token, vocab_size }),
            None => Ok(()),
        }
    }

    /// Returns the errors of an answer by slot, after checking that each row has at most one.
    fn check_errors<'a>(
        &self,
        output: &'a StepOutput,
    ) -> Result<HashMap<u32, &'a RowError>, MalformedAnswer> {
        let mut failed = HashMap::new();
        if output.errors.is_empty() {
            return Ok(failed);
        }
        let rows: HashSet<u32> = self.rows.iter().map(|row| row.slot.0).collect();
        for error in &output.errors {
            let slot = error.slot;
            if !rows.contains(&slot) || failed.insert(slot, error).is_some() {
                return Err(MalformedAnswer::StrayError { step: self.step, slot });
            }
        }
        Ok(failed)
    }
}

/// Checks that each of the sampling `rows` has one token, and one more for each draft that was
/// right, in the order of the rows.
fn check_tokens<'a>(
    step: u64,
    rows: impl Iterator<Item = &'a RowInFlight> + Clone,
    StepOutput { sampled, undrafted, .. }: &StepOutput,
) -> Result<(), MalformedAnswer> {
    let count = || MalformedAnswer::TokenCount { step, expected: rows.clone().count(), got: sampled.len() };
    let mut rest = sampled.as_slice();
    for row in rows.clone() {
        let next = rest.first().ok_or_else(count)?;
        if next.slot != row.slot.0 {
            return Err(MalformedAnswer::WrongSlot { step, expected: row.slot.0, got: next.slot });
        }
        let (tokens, others) = rest.split_at(row.tokens_at_start(rest));
        let follows = match &row.drafts {
            RowDrafts::Model(_) => tokens.len() == 1 || !undrafted.contains(&row.slot.0),
            RowDrafts::Tokens(drafts) => {
                let mut drafts = drafts.iter();
                let mut is_wrong = |token: &Sampled| drafts.next().is_none_or(|&draft| draft != token.token);
                // The first token that differs from its draft, or has none, is the last one.
                tokens.iter().position(&mut is_wrong) == Some(tokens.len() - 1)
            }
        };
        if !follows {
            return Err(MalformedAnswer::Drafts { step, slot: row.slot.0 });
        }
        rest = others;
    }
    if rest.is_empty() { Ok(()) } else { Err(count()) }
}

impl RowInFlight {
    /// Number of tokens at the start of `sampled` that belong to the row.
    pub(super) fn tokens_at_start(&self, sampled: &[Sampled]) -> usize {
        let most = if self.samples { 1 + self.drafts.len() } else { 0 };
        sampled.iter().take(most).take_while(|token| token.slot == self.slot.0).count()
    }
}

/// Iterates over every token id of an answer: sampled tokens and alternatives.
fn all_tokens(output: &StepOutput) -> impl Iterator<Item = u32> {
    let prompt = output.scored.iter().flat_map(|scored| &scored.tokens).flat_map(|token| &token.top);
    let alternatives = output.sampled.iter().flat_map(|sampled| &sampled.top).chain(prompt);
    let sampled = output.sampled.iter().map(|sampled| sampled.token);
    sampled.chain(alternatives.map(|top: &TokenLogprob| top.token))
}
