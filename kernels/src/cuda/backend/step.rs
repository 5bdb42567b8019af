//! The geometry of a step in the device's memory.

use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::{SeqRow, StepInput, StepSize};
use crate::cuda::ops::paged::Batch;

/// The current step: a single array of words, filled on the host and copied at once.
#[derive(Debug)]
pub struct Step {
    memory: Memory,
    /// As the device will have them.
    words: Vec<u8>,
    size: StepSize,
    at: Lists,
    tokens: usize,
    rows: usize,
    outputs: usize,
    most_queries: usize,
    most_context: usize,
}

/// Where each list begins, in words.
#[derive(Debug, Clone, Copy)]
struct Lists {
    ids: usize,
    positions: usize,
    slots: usize,
    query_start: usize,
    context: usize,
    outputs: usize,
    tables: usize,
}

impl Lists {
    /// The lists for steps of this size, one after the other, and their length together.
    fn of(size: &StepSize) -> (Lists, usize) {
        let &StepSize { tokens, rows, table_blocks, .. } = size;
        let mut end: usize = 0;
        let mut list = |len: usize| {
            let at = end;
            end = end.saturating_add(len);
            at
        };
        let at = Lists {
            ids: list(tokens),
            positions: list(tokens),
            slots: list(tokens),
            query_start: list(rows + 1),
            context: list(rows),
            outputs: list(tokens),
            tables: list(rows.saturating_mul(table_blocks)),
        };
        (at, end)
    }
}

impl Step {
    /// Bytes of all lists on the device.
    pub(super) fn bytes(size: &StepSize) -> usize {
        Lists::of(size).1.saturating_mul(Elem::I32.size())
    }

    pub(super) fn new(device: &Device, size: StepSize) -> Result<Step> {
        let (at, end) = Lists::of(&size);
        let memory = device.allocate(Elem::I32, end)?;
        let words = vec![0; end * 4];
        Ok(Step { memory, words, size, at, tokens: 0, rows: 0, outputs: 0, most_queries: 0, most_context: 0 })
    }

    /// Writes the lists of `input` and copies them to the device, the tables as far as they are used.
    pub(super) fn set(&mut self, device: &Device, input: &StepInput<'_>) -> Result<()> {
        let Lists { ids, positions, slots, query_start, context, outputs, tables } = self.at;
        (self.tokens, self.rows, self.outputs) = (0, input.rows.len(), input.outputs.len());
        (self.most_queries, self.most_context) = (0, 0);
        self.put(query_start, [0]);
        for (r, row) in input.rows.iter().enumerate() {
            let SeqRow { start, count, blocks } = *row;
            let block_size = self.size.block_size;
            let slot = |p: usize| blocks[p / block_size] as usize * block_size + p % block_size;
            self.put(positions + self.tokens, start..start + count);
            self.put(slots + self.tokens, (start..start + count).map(slot));
            self.tokens += count;
            self.put(query_start + r + 1, [self.tokens]);
            self.put(context + r, [start + count]);
            self.put(tables + r * self.size.table_blocks, blocks.iter().map(|&b| b as usize));
            self.most_queries = self.most_queries.max(count);
            self.most_context = self.most_context.max(start + count);
        }
        assert_eq!(self.tokens, input.tokens.len(), "tokens of the rows and of the step");
        self.put(ids, input.tokens.iter().map(|&id| id as usize));
        self.put(outputs, input.outputs.iter().map(|&t| t as usize));
        let used = tables + self.rows * self.size.table_blocks;
        device.write(self.memory.view(Elem::I32).slice(0..used), &self.words[..used * 4])
    }

    fn put(&mut self, at: usize, words: impl IntoIterator<Item = usize>) {
        let places = self.words[at * 4..].chunks_exact_mut(4);
        for (place, word) in places.zip(words) {
            place.copy_from_slice(&(word as u32).to_le_bytes());
        }
    }

    fn list(&self, at: usize, len: usize) -> View<'_> {
        self.memory.view(Elem::I32).slice(at..at + len)
    }

    /// Tokens of the step.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Rows whose logits are wanted.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Token ids, `[tokens]`.
    pub(super) fn ids(&self) -> View<'_> {
        self.list(self.at.ids, self.tokens)
    }

    /// Positions in their sequences, `[tokens]`.
    pub(super) fn positions(&self) -> View<'_> {
        self.list(self.at.positions, self.tokens)
    }

    /// Places in the cache, `[tokens]`.
    pub(super) fn slots(&self) -> View<'_> {
        self.list(self.at.slots, self.tokens)
    }

    /// Tokens whose logits are wanted, `[outputs]`.
    pub(super) fn output_index(&self) -> View<'_> {
        self.list(self.at.outputs, self.outputs)
    }

    /// The sequences.
    pub(super) fn batch(&self) -> Batch<'_> {
        let StepSize { table_blocks, .. } = self.size;
        Batch {
            rows: self.rows,
            tokens: self.tokens,
            query_start: self.list(self.at.query_start, self.rows + 1),
            context: self.list(self.at.context, self.rows),
            tables: self.list(self.at.tables, self.rows * table_blocks),
            table_stride: table_blocks,
            most_queries: self.most_queries,
            most_context: self.most_context,
        }
    }
}
