//! The sizes that everything is allocated for.

use millrace_kernels::{DType, StepSize};

/// The largest step, the longest sequence and the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of all rows of one step.
    pub max_step_tokens: usize,
    /// Slots of the table; rows of one step; positions of one step whose logits are wanted.
    pub max_sequences: usize,
    /// Positions of one sequence.
    pub max_sequence_tokens: usize,
    /// Tokens per block of the KV pool.
    pub block_size: usize,
    /// Blocks of the KV pool.
    pub num_blocks: usize,
    /// Element type of the KV pool.
    pub kv_dtype: DType,
}

impl Limits {
    /// The largest step.
    pub fn step_size(&self) -> StepSize {
        StepSize {
            tokens: self.max_step_tokens,
            rows: self.max_sequences,
            table_blocks: self.table_blocks(),
            block_size: self.block_size,
        }
    }

    /// Blocks of the longest block table.
    pub fn table_blocks(&self) -> usize {
        self.max_sequence_tokens.div_ceil(self.block_size)
    }
}
