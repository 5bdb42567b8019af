//! The step queue. The CPU computes during the calls, so that at most one step is under way.

use millrace_backend::{Sampled, SeqRow, SequencePrefix, StepInput, StepSize};

/// The largest number of tokens in a [`TokenGroup`]. Their inputs stay in the cache of a core.
const GROUP_TOKENS: usize = 32;

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
    /// For each row with an adapter the adapter and the index of the row, in ascending order.
    adapted_rows: Vec<(usize, u32)>,
    /// The tokens of these rows, in the order of the list.
    pub(super) adapted_tokens: Vec<u32>,
    /// The same tokens in groups.
    pub(super) token_groups: Vec<TokenGroup>,
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

/// Tokens of a step with the same adapter, which are computed together.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenGroup {
    pub(super) adapter: usize,
    /// Index of the first token in [`Queue::adapted_tokens`].
    pub(super) first: usize,
    /// Number of tokens, from 1 to [`GROUP_TOKENS`].
    pub(super) count: usize,
}

impl Queue {
    pub(super) fn new(size: &StepSize<'_>) -> Queue {
        Queue {
            tokens: Vec::with_capacity(size.tokens),
            outputs: Vec::with_capacity(size.tokens),
            rows: Vec::with_capacity(size.rows),
            row_of: Vec::with_capacity(size.tokens),
            tables: Vec::with_capacity(size.rows * size.table_blocks()),
            adapted_rows: Vec::with_capacity(size.rows),
            adapted_tokens: Vec::with_capacity(size.tokens),
            token_groups: Vec::with_capacity(size.rows + size.tokens / GROUP_TOKENS),
            blocks_end: 0,
            sampled: Vec::with_capacity(size.rows),
            steps: 0,
            last_steps: vec![0; size.rows],
            slots_differ: true,
        }
    }

    /// Replaces the step by `input`.
    pub(super) fn set(&mut self, input: &StepInput<'_>) {
        for list in [
            &mut self.tokens,
            &mut self.outputs,
            &mut self.row_of,
            &mut self.tables,
            &mut self.adapted_tokens,
        ] {
            list.clear();
        }
        self.rows.clear();
        self.adapted_rows.clear();
        self.token_groups.clear();
        self.steps += 1;
        self.slots_differ = true;
        self.tokens.extend_from_slice(input.tokens);
        self.outputs.extend_from_slice(input.outputs);
        for &SeqRow { slot, start, count, blocks, prefix, adapter, .. } in input.rows {
            let token = self.row_of.len();
            self.adapted_rows.extend(adapter.map(|adapter| (adapter, self.rows.len() as u32)));
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
        self.group_tokens();
    }

    /// Puts the tokens of rows with the same adapter into groups.
    fn group_tokens(&mut self) {
        self.adapted_rows.sort_unstable();
        for &(adapter, row) in &self.adapted_rows {
            let Row { token, count, .. } = self.rows[row as usize];
            for token in token..token + count {
                let first = self.adapted_tokens.len();
                match self.token_groups.last_mut() {
                    Some(group) if group.adapter == adapter && group.count < GROUP_TOKENS => group.count += 1,
                    _ => self.token_groups.push(TokenGroup { adapter, first, count: 1 }),
                }
                self.adapted_tokens.push(token as u32);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_numbers::DType;

    fn queue(tokens: usize, rows: usize) -> Queue {
        Queue::new(&StepSize {
            tokens,
            rows,
            sequence_tokens: tokens,
            blocks: 1,
            block_size: tokens,
            kv_format: DType::F32.into(),
            vocab: 1,
            attention: &[],
        })
    }

    fn set(queue: &mut Queue, rows: &[(usize, Option<usize>)]) {
        let tokens = vec![0; rows.iter().map(|row| row.0).sum()];
        let rows: Vec<SeqRow<'_>> = (0..)
            .zip(rows)
            .map(|(slot, &(count, adapter))| SeqRow::prefill(slot, 0..count, &[0]).with_adapter(adapter))
            .collect();
        queue.set(&StepInput { tokens: &tokens, rows: &rows, ..StepInput::EMPTY });
    }

    #[test]
    fn tokens_are_grouped_by_adapter() {
        let mut queue = queue(80, 5);
        set(&mut queue, &[(1, Some(3)), (2, None), (1, Some(0)), (40, Some(3)), (1, Some(0))]);
        let groups: Vec<_> = queue.token_groups.iter().map(|of| (of.adapter, of.first, of.count)).collect();
        assert_eq!(groups, [(0, 0, 2), (3, 2, 32), (3, 34, 9)]);
        assert_eq!(queue.adapted_tokens[..5], [3, 44, 0, 4, 5]);
        assert_eq!((queue.adapted_tokens.len(), queue.adapted_tokens.last()), (43, Some(&43)));
        set(&mut queue, &[(2, None), (1, None)]);
        assert!(queue.token_groups.is_empty() && queue.adapted_tokens.is_empty());
    }

    /// The lists of the largest step fit the memory that was reserved for them.
    #[test]
    fn groups_fit_their_memory() {
        for counts in [[33, 33, 14], [1, 78, 1], [34, 2, 44]] {
            let mut queue = queue(80, 3);
            let before = queue.token_groups.capacity();
            set(&mut queue, &[(counts[0], Some(0)), (counts[1], Some(1)), (counts[2], Some(2))]);
            assert_eq!(queue.token_groups.capacity(), before, "{counts:?}");
            let sum: usize = queue.token_groups.iter().map(|group| group.count).sum();
            assert_eq!((sum, queue.adapted_rows.capacity()), (80, 3));
        }
    }
}
