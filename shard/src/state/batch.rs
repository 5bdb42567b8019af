//! What one step computes, gathered from the slots.

use super::StepError;
use crate::Limits;

/// The inputs of one step, without the block tables. Its vectors are allocated once.
#[derive(Debug)]
pub struct Batch {
    /// Token ids, row after row.
    pub tokens: Vec<u32>,
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
    pub(super) rows: Vec<BatchRow>,
    /// Where the tokens go that the step samples, in the order of the outputs.
    pub(super) expected: Vec<Expected>,
    /// The slots whose rows are not computed because their sequences are refused, each with the reason.
    pub(super) refused: Vec<(usize, StepError)>,
}

/// One sequence's share of the step.
#[derive(Debug)]
pub(super) struct BatchRow {
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) sample: bool,
    /// Whether it is a generated token that is sampled after.
    pub(super) decodes: bool,
    /// States, from the first on, by which the tokens that follow them are scored.
    pub(super) scored: usize,
    /// Alternatives to report at each of them.
    pub(super) top_n: u32,
}

/// The place of a token that a step under way samples.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) slot: usize,
    /// The slot's sequence: it may have another one by the time that the token is known.
    pub(super) sequence: u64,
    pub(super) position: usize,
}

impl Batch {
    /// An empty batch with room for the largest step.
    pub fn new(limits: &Limits) -> Self {
        Batch {
            tokens: Vec::with_capacity(limits.max_step_tokens),
            outputs: Vec::with_capacity(limits.max_sequences),
            rows: Vec::with_capacity(limits.max_sequences),
            expected: Vec::with_capacity(limits.max_sequences),
            refused: Vec::new(),
        }
    }

    /// The slots that get a token, in the order of the outputs.
    pub fn sampling_slots(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().filter(|row| row.sample).map(|row| row.slot)
    }

    /// The slots whose rows are not computed because their sequences are refused, each with the reason.
    pub fn refused(&self) -> impl Iterator<Item = (usize, &StepError)> {
        self.refused.iter().map(|(slot, error)| (*slot, error))
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.outputs.clear();
        self.rows.clear();
        self.expected.clear();
        self.refused.clear();
    }

    /// The rows, each with the place of its first token among those of the step.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &BatchRow)> {
        let mut end = 0;
        self.rows.iter().map(move |row| {
            end += row.count;
            (end - row.count, row)
        })
    }

    pub(super) fn push(&mut self, row: BatchRow, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        let sample = row.sample;
        self.rows.push(row);
        if sample {
            self.outputs.push((self.tokens.len() - 1) as u32);
        }
    }
}
