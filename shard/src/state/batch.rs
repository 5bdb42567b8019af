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
    /// Where the tokens go that the step samples, in the order of the outputs.
    pub(super) expected: Vec<Expected>,
}

/// One sequence's share of the step.
#[derive(Debug)]
pub(super) struct BatchRow {
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) sample: bool,
    pub(super) decodes: bool,
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
        self.expected.clear();
    }

    /// `prompt_len` tokens of the sequence are no generated ones.
    pub(super) fn push(
        &mut self,
        slot: usize,
        start: usize,
        tokens: &[u32],
        sample: bool,
        prompt_len: usize,
    ) {
        self.tokens.extend_from_slice(tokens);
        let (count, decodes) = (tokens.len(), sample && tokens.len() == 1 && start >= prompt_len);
        self.rows.push(BatchRow { slot, start, count, sample, decodes });
        if sample {
            self.outputs.push((self.tokens.len() - 1) as u32);
        }
    }
}
