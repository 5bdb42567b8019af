//! The step queue. The CPU computes during the calls, so that at most one step is under way.

use millrace_backend::{Sampled, SeqRow, SequencePrefix, StepInput, StepSize};

/// The current step, in memory that was reserved for the largest one.
#[derive(Debug)]
pub struct Queue {
    pub(super) tokens: Vec<u32>,
    pub(super) outputs: Vec<u32>,
    pub(super) rows: Vec<Row>,
    /// For each token the index of its row.
    row_of: Vec<u32>,
    /// The block tables of all rows, one after the other.
    tables: Vec<u32>,
    /// One more than the highest block in all tables.
    pub(super) blocks_end: usize,
    pub(super) sampled: Vec<Sampled>,
    /// Number of steps so far.
    steps: u64,
    /// For each slot the number of the last step with a row of it.
    last_steps: Vec<u64>,
    /// Whether no two rows of the step have the same slot.
    slots_differ: bool,
}

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The sequence's slot.
    pub(super) slot: usize,
    /// Position of the first token.
    pub(super) start: usize,
    pub(super) count: usize,
    /// Index of the first token in the step.
    pub(super) token: usize,
    /// Index of the first block in `tables`.
    table: usize,
    blocks: usize,
    pub(super) prefix: SequencePrefix,
}

impl Queue {
    pub(super) fn new(size: &StepSize<'_>) -> Queue {
        Queue {
            tokens: Vec::with_capacity(size.tokens),
            outputs: Vec::with_capacity(size.tokens),
            rows: Vec::with_capacity(size.rows),
            row_of: Vec::with_capacity(size.tokens),
            tables: Vec::with_capacity(size.rows * size.table_blocks()),
            blocks_end: 0,
            sampled: Vec::with_capacity(size.rows),
            steps: 0,
            last_steps: vec![0; size.rows],
            slots_differ: true,
        }
    }

    /// Replaces the step by `input`.
    pub(super) fn set(&mut self, input: &StepInput<'_>) {
        for list in [&mut self.tokens, &mut self.outputs, &mut self.row_of, &mut self.tables] {
            list.clear();
        }
        self.rows.clear();
        self.steps += 1;
        self.slots_differ = true;
        self.tokens.extend_from_slice(input.tokens);
        self.outputs.extend_from_slice(input.outputs);
        for &SeqRow { slot, start, count, blocks, prefix, .. } in input.rows {
            let token = self.row_of.len();
            self.row_of.extend(std::iter::repeat_n(self.rows.len() as u32, count));
            let (table, blocks_of_row) = (self.tables.len(), blocks.len());
            self.rows.push(Row { slot, start, count, token, table, blocks: blocks_of_row, prefix });
            self.tables.extend_from_slice(blocks);
            if let Some(last) = self.last_steps.get_mut(slot) {
                self.slots_differ &= std::mem::replace(last, self.steps) != self.steps;
            }
        }
        assert_eq!(self.row_of.len(), self.tokens.len(), "tokens of the rows and of the step");
        assert!(self.outputs.iter().all(|&t| (t as usize) < self.tokens.len()), "outputs among the tokens");
        self.blocks_end = self.tables.iter().max().map_or(0, |&b| b as usize + 1);
    }

    /// Returns the block table of a row.
    pub(super) fn blocks(&self, row: &Row) -> &[u32] {
        &self.tables[row.table..row.table + row.blocks]
    }

    /// Checks that the block tables refer to the blocks of a cache of `blocks` blocks of
    /// `block_size` tokens, and cover every position.
    ///
    /// # Panics
    /// If they do not, which is a bug.
    pub(super) fn check_blocks(&self, blocks: usize, block_size: usize) {
        assert!(self.blocks_end <= blocks, "a block outside the cache");
        for row in &self.rows {
            let covered = self.blocks(row).len() * block_size;
            assert!(row.start + row.count <= covered, "a position without a block");
        }
    }

    /// Checks that each row has a slot of its own among `slots`, where the recurrent states are.
    ///
    /// # Panics
    /// If not, which is a bug.
    pub(super) fn check_slots(&self, slots: usize) {
        assert!(slots <= self.last_steps.len(), "more states than slots");
        assert!(self.slots_differ, "two rows of one slot");
        assert!(self.rows.iter().all(|row| row.slot < slots), "a slot outside the states");
    }

    /// Returns the position of a token of the step in its sequence, and the sequence's block table.
    pub(super) fn place(&self, token: usize) -> (usize, &[u32]) {
        let row = self.row(token);
        (row.start + token - row.token, self.blocks(row))
    }

    /// Returns the row of a token of the step.
    pub(super) fn row(&self, token: usize) -> &Row {
        &self.rows[self.row_of[token] as usize]
    }
}
