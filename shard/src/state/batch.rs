//! The inputs of one step, gathered from the slots.

use std::ops::Range;

use millrace_backend::{SampleRow, SeqRow, StateCopy};
use millrace_model::ShardLimits;
use millrace_proto::Pooling;

use super::StepError;

/// The inputs of one step, without the block tables. Its vectors are allocated once.
#[derive(Debug)]
pub struct Batch {
    /// Token ids, row after row.
    pub tokens: Vec<u32>,
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
    /// The states that sequences begin with or go back to, as copies from checkpoints.
    pub restored_states: Vec<StateCopy>,
    /// The states before rows with drafts that are kept, as copies to checkpoints.
    pub kept_states: Vec<StateCopy>,
    /// The states after rows that are kept, as copies to checkpoints.
    pub saved_states: Vec<StateCopy>,
    pub(super) rows: Vec<BatchRow>,
    /// The work of the draft model before the step, first the rows that read one token and guess.
    pub(super) draft_rows: Vec<DraftRow>,
    /// The states of the step that a head reads or keeps.
    pub(super) step_states: Vec<StepStates>,
    /// The slots of rows that were to have drafts of the draft model and have none.
    pub(super) undrafted: Vec<u32>,
    /// The places of the tokens that the step samples, in the order of the outputs.
    pub(super) expected: Vec<ExpectedToken>,
    /// The slots whose rows are not computed because their sequences are refused, each with the
    /// reason.
    pub(super) refused: Vec<(usize, StepError)>,
    /// Whether the masks of some rows follow.
    pub(super) awaits_masks: bool,
}

/// One sequence's share of the step.
#[derive(Debug)]
pub(super) struct BatchRow {
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) sample: bool,
    /// Whether the row is one generated token after which the next one is sampled.
    pub(super) decodes: bool,
    /// Number of drafts at the end of the row, which are part of `count`.
    pub(super) drafts: usize,
    /// Whether the row's mask follows.
    pub(super) mask_follows: bool,
    /// Whether the row's mask has not come in time.
    pub(super) deferred: bool,
    /// Number of states, from the first on, that score the token after them.
    pub(super) scored: usize,
    /// Number of most likely tokens to report for each of them.
    pub(super) top_n: u32,
}

/// The place of a token that a step samples.
#[derive(Debug)]
pub(super) struct ExpectedToken {
    pub(super) slot: usize,
    /// Number of the slot's sequence. By the time that the token is known, the slot may hold
    /// another one.
    pub(super) sequence: u64,
    /// None for a deferred row, whose token is dropped.
    pub(super) position: Option<usize>,
    /// The draft in this place. The later tokens of the row are dropped if the token differs from
    /// it.
    pub(super) draft: Option<u32>,
    /// Whether the token is dropped.
    pub(super) dropped: bool,
}

/// The work of the draft model for a row.
#[derive(Debug)]
pub(super) struct DraftRow {
    pub(super) slot: usize,
    /// The position with which the sequence begins for it.
    pub(super) from: usize,
    /// The positions that it reads before it guesses.
    pub(super) read: Range<usize>,
    /// Number of tokens that it guesses after them.
    pub(super) drafts: usize,
    /// Number of positions from one that is read to its token: a head reads the token after each
    /// position.
    pub(super) ahead: usize,
    /// Index of the first guess among the step's tokens.
    pub(super) at: usize,
}

/// The states of a row that a head reads or keeps after the step.
#[derive(Debug, Clone)]
pub struct StepStates {
    /// The sequence's slot.
    pub slot: usize,
    /// Index of the first state among the step's tokens.
    pub at: usize,
    /// The positions of the states. Those after wrong drafts are among them.
    pub positions: Range<usize>,
    /// The position with which the sequence begins for the head.
    pub from: usize,
    /// The positions whose states are read at once.
    pub read: Range<usize>,
    /// The positions whose states are kept.
    pub kept: Range<usize>,
}

/// The states that a head reads in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassStates {
    /// Those of the model that were kept for the positions from this one on.
    Kept(usize),
    /// The head's own last one of the sequence.
    Own,
    /// Those of the step's tokens from this index on.
    OfStep(usize),
}

/// A row of a pass of the draft model.
#[derive(Debug, Clone, Copy)]
pub struct DraftPassRow<'a> {
    /// The row.
    pub row: SeqRow<'a>,
    /// The states that a head reads.
    pub states: PassStates,
    /// The tokens that it reads.
    pub tokens: &'a [u32],
    /// How the token after them is guessed, if it is: as the model samples it, so that both get the
    /// same random number.
    pub sample: Option<SampleRow<'a>>,
}

/// Prompt tokens to be scored after a step.
#[derive(Debug, Clone)]
pub struct Scoring<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Indices among the step's tokens of the tokens before the scored ones. Their states score
    /// `tokens`.
    pub states: Range<usize>,
    /// The tokens to score.
    pub tokens: &'a [u32],
    /// Number of most likely tokens to report for each of them.
    pub top_n: u32,
}

/// A row of a sequence that is pooled.
#[derive(Debug, Clone)]
pub struct PooledRow {
    /// The sequence's slot.
    pub slot: usize,
    /// The kind of pooling. It is not [`Pooling::None`].
    pub pooling: Pooling,
    /// Whether a new vector begins with this row.
    pub begins: bool,
    /// Indices among the step's tokens of the states that are pooled.
    pub states: Range<usize>,
    /// The position in the prompt of the first of these states.
    pub position: usize,
    /// Whether all states of the prompt have been pooled after this row.
    pub is_complete: bool,
}

impl Batch {
    /// Creates an empty batch with room for the largest step.
    pub fn new(limits: &ShardLimits) -> Self {
        Batch {
            tokens: Vec::with_capacity(limits.max_step_tokens),
            outputs: Vec::with_capacity(limits.max_outputs()),
            restored_states: Vec::with_capacity(limits.max_sequences),
            kept_states: Vec::with_capacity(limits.max_sequences),
            saved_states: Vec::with_capacity(limits.max_sequences),
            rows: Vec::with_capacity(limits.max_sequences),
            draft_rows: Vec::new(),
            step_states: Vec::new(),
            undrafted: Vec::new(),
            expected: Vec::with_capacity(limits.max_outputs()),
            refused: Vec::new(),
            awaits_masks: false,
        }
    }

    /// Returns the slots that are sampled for, in the order of the outputs, each with whether its
    /// token is kept. It is known after [`SlotTable::fill`](super::SlotTable::fill). The token of a
    /// deferred row is not kept, and neither are the tokens after a draft that was wrong.
    pub fn kept_tokens(&self) -> impl Iterator<Item = (usize, bool)> {
        self.expected.iter().map(|place| (place.slot, !place.dropped))
    }

    /// Tells whether the masks of some rows follow.
    pub fn awaits_masks(&self) -> bool {
        self.awaits_masks
    }

    /// Returns the slots whose rows are not computed because their sequences are refused, each with
    /// the reason.
    pub fn refused(&self) -> impl Iterator<Item = (usize, &StepError)> {
        self.refused.iter().map(|(slot, error)| (*slot, error))
    }

    /// Returns the number of passes of the draft model before the step.
    pub fn draft_passes(&self) -> usize {
        let passes = self.draft_rows.iter().map(|row| row.drafts.max(1));
        passes.max().unwrap_or(0)
    }

    /// Returns the states of the step that a head reads or keeps.
    pub fn step_states(&self) -> &[StepStates] {
        &self.step_states
    }

    /// Returns the slots of rows that were to have drafts of the draft model and have none.
    pub fn undrafted(&self) -> &[u32] {
        &self.undrafted
    }

    /// Puts the rows that decode first, because a device may compute them differently.
    pub(super) fn order_draft_rows(&mut self) {
        self.draft_rows.sort_by_key(|row| row.drafts == 0 || row.read.len() > 1);
    }

    /// Returns the number of drafts in all rows.
    pub(super) fn drafts(&self) -> usize {
        self.rows.iter().map(|row| row.drafts).sum()
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.outputs.clear();
        self.restored_states.clear();
        self.kept_states.clear();
        self.saved_states.clear();
        self.rows.clear();
        self.draft_rows.clear();
        self.step_states.clear();
        self.undrafted.clear();
        self.expected.clear();
        self.refused.clear();
    }

    /// Returns the rows, each with the index of its first token among those of the step.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &BatchRow)> {
        let mut end = 0;
        self.rows.iter().map(move |row| {
            end += row.count;
            (end - row.count, row)
        })
    }

    pub(super) fn push(&mut self, row: BatchRow, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        let end = self.tokens.len() as u32;
        if row.sample {
            self.outputs.extend(end - 1 - row.drafts as u32..end);
        }
        self.rows.push(row);
    }
}
