//! The limits that a shard allocates its memory for.

use millrace_backend::KvFormat;

/// The limits that a shard allocates its memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardLimits {
    /// Maximum number of tokens of all rows of one step.
    pub max_step_tokens: usize,
    /// Maximum number of sequences: of slots, and of rows of one step.
    pub max_sequences: usize,
    /// Maximum number of positions of one sequence.
    pub max_sequence_tokens: usize,
    /// Number of tokens per block of the KV pool.
    pub block_size: usize,
    /// Number of blocks of the KV pool.
    pub num_blocks: usize,
    /// Format of the KV pool.
    pub kv_format: KvFormat,
    /// Number of checkpoints of recurrent states.
    pub state_checkpoints: usize,
    /// Maximum number of drafts of all rows of one step together.
    pub max_drafts: usize,
}

impl ShardLimits {
    /// Returns the maximum number of positions of one step that need logits.
    pub fn max_outputs(&self) -> usize {
        self.max_sequences.saturating_add(self.max_drafts)
    }

    /// Returns the number of blocks of the longest block table.
    pub fn table_blocks(&self) -> usize {
        self.max_sequence_tokens.div_ceil(self.block_size)
    }

    /// Returns the bytes of the tokens, block tables and masks of all sequences, for token ids
    /// below `vocab`. A sequence has a token more than are computed, and a bit of the mask for each
    /// id.
    pub fn slot_table_bytes(&self, vocab: usize) -> usize {
        let table = self.table_blocks().saturating_add(vocab.div_ceil(32));
        let per_slot = self.max_sequence_tokens.saturating_add(table).saturating_add(1);
        self.max_sequences.saturating_mul(per_slot).saturating_mul(size_of::<u32>())
    }
}
