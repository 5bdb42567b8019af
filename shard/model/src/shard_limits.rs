//! The limits that a shard allocates its memory for.

use millrace_backend::{AdapterSpec, KvFormat};
use millrace_numbers::DType;

use crate::description::{DecoderSpec, WeightSlot};

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
    /// The adapters.
    pub adapters: AdapterLimits,
}

/// The numbers of adapters and the largest rank of their matrices, for which memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Number of places in the pools.
    pub count: usize,
    /// Maximum number of adapters that are loaded. If there are fewer places, all of them are kept
    /// in host memory.
    pub max_loaded: usize,
    /// The largest rank of a matrix of an adapter.
    pub max_rank: usize,
}

impl AdapterLimits {
    /// No adapters.
    pub const NONE: Self = AdapterLimits { count: 0, max_loaded: 0, max_rank: 0 };

    /// Returns the pool of adapters of the matrix for `slot` of `spec`, which is this rank's share
    /// of the model, in numbers of type `dtype`.
    pub fn pool(self, spec: &DecoderSpec, slot: WeightSlot, dtype: DType) -> AdapterSpec {
        let (outputs, inputs) = spec.shape(slot);
        AdapterSpec { inputs, outputs, places: self.count, rank: self.rank(slot), dtype }
    }

    /// Whether adapters are kept in host memory, and steps copy them into places.
    pub fn keeps_copies(self) -> bool {
        self.max_loaded > self.count
    }

    /// Returns the largest sum of the ranks of what one adapter adds to the matrix for `slot`. Each
    /// block of its outputs may be a matrix of its own in the checkpoint.
    pub fn rank(self, slot: WeightSlot) -> usize {
        slot.info().outputs.len().saturating_mul(self.max_rank)
    }
}

/// Maximum number of tokens that a draft model reads in one step before it guesses, beside one for
/// each sequence. A sequence with a long prompt waits some steps for its first guess, so that no
/// step takes much longer than the ones beside it.
pub const MAX_DRAFT_READ: usize = 256;

/// Number of states of a sequence that a head which predicts further tokens keeps until it reads
/// them. A row with drafts has at most as many positions.
pub const KEPT_STATES: usize = 16;

impl ShardLimits {
    /// Returns the limits of the draft model with `positions` positions, for a model with these
    /// limits: it has the same sequences and blocks.
    #[must_use]
    pub fn of_draft_model(self, positions: usize) -> ShardLimits {
        ShardLimits {
            max_step_tokens: MAX_DRAFT_READ.saturating_add(self.max_sequences),
            max_sequence_tokens: self.max_sequence_tokens.min(positions),
            state_checkpoints: 0,
            max_drafts: 0,
            adapters: AdapterLimits::NONE,
            ..self
        }
    }

    /// Returns the limits of a head that reads the states of a model with these limits: it reads
    /// all tokens of a step.
    #[must_use]
    pub fn of_mtp_head(self) -> ShardLimits {
        ShardLimits {
            // The states of a sequence that were kept are read in one row.
            max_step_tokens: self.max_step_tokens.max(KEPT_STATES),
            state_checkpoints: 0,
            max_drafts: 0,
            adapters: AdapterLimits::NONE,
            ..self
        }
    }

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
