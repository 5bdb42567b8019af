//! What one step computes, gathered from the slots.

use crate::Limits;

/// The inputs of one step, without the block tables. Its vectors are allocated once.
#[derive(Debug)]
pub struct Batch {
    /// Token ids, row after row.
    pub tokens: Vec<u32>,
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
    pub(super) rows: Vec<BatchRow>,
}

/// One sequence's share of the step.
#[derive(Debug)]
pub(super) struct BatchRow {
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) sample: bool,
}

impl Batch {
    /// An empty batch with room for the largest step.
    pub fn new(limits: &Limits) -> Self {
        Batch {
            tokens: Vec::with_capacity(limits.max_step_tokens),
            outputs: Vec::with_capacity(limits.max_sequences),
            rows: Vec::with_capacity(limits.max_sequences),
        }
    }

    /// The slots that get a token, in the order of the outputs.
    pub fn sampling_slots(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().filter(|row| row.sample).map(|row| row.slot)
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.outputs.clear();
        self.rows.clear();
    }

    pub(super) fn push(&mut self, slot: usize, start: usize, tokens: &[u32], sample: bool) {
        self.tokens.extend_from_slice(tokens);
        self.rows.push(BatchRow { slot, start, count: tokens.len(), sample });
        if sample {
            self.outputs.push((self.tokens.len() - 1) as u32);
        }
    }
}
