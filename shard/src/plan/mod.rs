//! The memory plan: weights + workspace + KV pool = total, before anything is allocated.
//!
//! All arithmetic saturates, so that absurd sizes are refused as too large.

mod device;

use millrace_kernels::{DType, KvSpec, Overheads, QkvLayout};

use crate::decoder::{activation_elements, attention, products, step_size};
use crate::model::{DecoderSpec, Storage};
use crate::state::SlotTable;
use crate::{Bytes, Limits};
pub use device::{Device, Unpadded};

/// Tokens in the KV pool, or more if one sequence is to have more, when neither a size is given nor the free memory known.
const BLIND_POOL: usize = 8192;

/// What the operator asked for, and what there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// How weights are kept.
    pub weights: Storage,
    /// Element type of the KV pool.
    pub kv_dtype: DType,
    /// Longest sequence; as long as the model and the memory allow if not given.
    pub max_total_tokens: Option<usize>,
    /// Tokens in the KV pool; as many as the memory allows if not given.
    pub max_batch_total_tokens: Option<usize>,
    /// Tokens of one step.
    pub max_step_tokens: usize,
    /// Sequences at once.
    pub max_sequences: usize,
    /// Ranks that the model is split over.
    pub ranks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Free memory in bytes, if known.
    pub free: Option<usize>,
    /// The share of the free memory that a pool without a given size may fill up to.
    pub fraction: f64,
}

/// Bytes by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Matrices, norms and biases.
    pub weights: usize,
    /// Activations of one step, and what the device needs to compute them.
    pub activations: usize,
    /// Logits of one step, and what they are gathered in.
    pub logits: usize,
    /// What the device keeps of steps and sequences.
    pub step: usize,
    /// Cosines and sines.
    pub rope_tables: usize,
    /// Tokens and block tables of all sequences.
    pub slot_table: usize,
    /// Keys and values.
    pub kv_pool: usize,
    /// What the device's driver and libraries take.
    pub overheads: Overheads,
}

/// A plan that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What is allocated for.
    pub limits: Limits,
    /// What it takes.
    pub footprint: Footprint,
    /// Free memory in bytes, if known.
    pub free: Option<usize>,
}

/// Why nothing fits, with the flag to change.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A size of zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The pool is smaller than the longest sequence.
    #[error(
        "a sequence may have {longest} tokens (--max-total-tokens), but the KV cache holds only {pool} (--max-batch-total-tokens); \
         lower the first or raise the second"
    )]
    PoolTooSmall {
        /// Tokens of the longest sequence.
        longest: usize,
        /// Tokens in the pool.
        pool: usize,
    },
    /// The memory does not suffice for weights, workspace and the KV pool.
    #[error(
        "not enough memory: weights {} + workspace {} {}, which needs {} for {kv_for}; lower \
         --max-batch-total-tokens, --max-total-tokens or --max-batch-prefill-tokens, choose a smaller --dtype or --kv-cache-dtype, \
         or free memory",
        Bytes(*.weights), Bytes(*.workspace), left(*.weights, *.workspace, *.budget), Bytes(*.kv)
    )]
    NoRoom {
        /// Bytes of weights.
        weights: usize,
        /// Bytes of activations and tables.
        workspace: usize,
        /// Bytes that may be used.
        budget: usize,
        /// Bytes of KV pool needed at least.
        kv: usize,
        /// What these bytes are for.
        kv_for: String,
    },
}

fn left(weights: usize, workspace: usize, budget: usize) -> String {
    match budget.checked_sub(weights.saturating_add(workspace)) {
        Some(left) => format!("leave {} of {} for the KV cache", Bytes(left), Bytes(budget)),
        None => format!("are more than {} and leave nothing for the KV cache", Bytes(budget)),
    }
}

/// Bytes of keys and values per token of a sequence, all layers together.
pub fn kv_bytes_per_token(spec: &DecoderSpec, kv_dtype: DType, device: &impl Device) -> usize {
    kv_bytes(spec, kv_dtype, 1, 1, device)
}

fn kv_bytes(
    spec: &DecoderSpec,
    dtype: DType,
    blocks: usize,
    block_size: usize,
    device: &impl Device,
) -> usize {
    let of_layer = |qkv: QkvLayout| {
        let QkvLayout { kv_heads, head_dim, .. } = qkv;
        device.kv_bytes(&KvSpec { blocks, block_size, kv_heads, head_dim, dtype })
    };
    spec.layers.iter().fold(0, |sum: usize, layer| sum.saturating_add(of_layer(layer.qkv)))
}

/// Bytes of matrices, norms and biases.
pub fn weight_bytes(spec: &DecoderSpec, storage: impl Into<Storage>, device: &impl Device) -> usize {
    let storage = storage.into();
    let bytes = |slot: crate::model::Slot| match spec.shape(slot) {
        (rows, cols) if slot.is_vector() => rows * cols * size_of::<f32>(),
        (rows, cols) => device.matrix_bytes(rows, cols, storage.matrix(slot)),
    };
    spec.slots().into_iter().map(bytes).sum()
}

/// What one of `ranks` ranks takes with these limits; `spec` is its share.
pub fn footprint(
    spec: &DecoderSpec,
    storage: impl Into<Storage>,
    limits: &Limits,
    ranks: usize,
    device: &impl Device,
) -> Footprint {
    let storage = storage.into();
    let singles = |elements: usize| elements.saturating_mul(size_of::<f32>());
    let Limits { max_step_tokens, max_sequences, block_size, num_blocks, .. } = *limits;
    // A rank that holds a part of the vocabulary has its own columns beside the whole rows.
    let own = if spec.vocab_rows == (0..spec.vocab) { 0 } else { spec.vocab_rows.len() };
    // Cosines and sines of half the rotated features.
    let rope_elements: usize = spec.ropes.iter().map(|rope| rope.rotary_dim).sum();
    Footprint {
        weights: weight_bytes(spec, storage, device),
        activations: device
            .activation_bytes(activation_elements(spec, max_step_tokens, max_sequences))
            .saturating_add(device.scratch_bytes(&products(spec, storage, limits))),
        logits: singles(max_sequences.saturating_mul(spec.vocab + own))
            .saturating_add(device.gather_bytes(ranks, max_sequences.saturating_mul(own))),
        step: device.step_bytes(&step_size(spec, limits, &attention(spec))),
        rope_tables: singles(limits.max_sequence_tokens.saturating_mul(rope_elements)),
        slot_table: SlotTable::bytes(limits, spec.vocab),
        kv_pool: kv_bytes(spec, limits.kv_dtype, num_blocks, block_size, device),
        overheads: device.overheads(ranks),
    }
}

/// More allocations than a decoder makes on its device.
pub fn allocations(spec: &DecoderSpec) -> usize {
    const BUFFERS: usize = 64;
    // A matrix of few bits has factors beside it.
    2 * spec.slots().len() + 2 * spec.layers.len() + 2 * spec.ropes.len() + BUFFERS
}

/// Decides how long sequences may be and how many blocks the KV pool has.
///
/// # Errors
/// If not even one sequence of the wanted length (or of one block, if none was asked for) fits.
pub fn plan(spec: &DecoderSpec, wish: &Wish, device: &impl Device) -> Result<Plan, PlanError> {
    for (flag, size) in [
        ("--max-total-tokens", wish.max_total_tokens.unwrap_or(1)),
        ("--max-batch-total-tokens", wish.max_batch_total_tokens.unwrap_or(1)),
        ("--max-batch-prefill-tokens", wish.max_step_tokens),
        ("the number of sequences", wish.max_sequences),
        ("the block size", wish.block_size),
    ] {
        if size == 0 {
            return Err(PlanError::Zero(flag));
        }
    }
    let planner = Planner { spec, wish, device };
    let (limits, budget) = match (wish.max_batch_total_tokens, wish.free) {
        (Some(tokens), free) => (planner.given_pool(tokens)?, free.unwrap_or(usize::MAX)),
        (None, Some(free)) => planner.largest_pool((free as f64 * wish.fraction) as usize)?,
        (None, None) => {
            let longest = wish.max_total_tokens.unwrap_or(0).min(spec.max_positions);
            (planner.given_pool(longest.max(BLIND_POOL))?, usize::MAX)
        }
    };
    let footprint = footprint(spec, wish.weights, &limits, wish.ranks, device);
    if footprint.total() > budget {
        let tokens = limits.num_blocks * limits.block_size;
        return Err(planner.no_room(&footprint, budget, format!("{tokens} tokens")));
    }
    Ok(Plan { limits, footprint, free: wish.free })
}

struct Planner<'a, D> {
    spec: &'a DecoderSpec,
    wish: &'a Wish,
    device: &'a D,
}

impl<D: Device> Planner<'_, D> {
    /// The longest sequence that the model and the operator allow.
    fn longest(&self) -> usize {
        self.wish.max_total_tokens.unwrap_or(usize::MAX).min(self.spec.max_positions)
    }

    /// The limits with a pool of this many tokens, in whole blocks.
    fn given_pool(&self, tokens: usize) -> Result<Limits, PlanError> {
        let blocks = tokens.div_ceil(self.wish.block_size);
        let (longest, pool) = (self.longest(), blocks.saturating_mul(self.wish.block_size));
        if self.wish.max_total_tokens.is_some() && pool < longest {
            return Err(PlanError::PoolTooSmall { longest, pool });
        }
        let longest = longest.min(pool);
        Ok(self.limits(longest, blocks.min(self.useful_blocks(longest))))
    }

    /// The limits with as many blocks as `budget` allows, and `budget`.
    fn largest_pool(&self, budget: usize) -> Result<(Limits, usize), PlanError> {
        let one_sequence = |longest: usize| self.limits(longest, longest.div_ceil(self.wish.block_size));
        let fits = |longest: usize| self.footprint(&one_sequence(longest)).total() <= budget;
        let mut longest = self.longest();
        if !fits(longest) {
            let shortest = match self.wish.max_total_tokens {
                Some(_) => longest,
                None => longest.min(self.wish.block_size),
            };
            if !fits(shortest) {
                let footprint = self.footprint(&one_sequence(shortest));
                let kv_for = format!("one sequence of {shortest} tokens");
                return Err(self.no_room(&footprint, budget, kv_for));
            }
            longest = largest(shortest, longest, fits);
        }
        // What the device keeps of steps may grow with the pool too.
        let holds = |blocks: usize| self.footprint(&self.limits(longest, blocks)).total() <= budget;
        let blocks = largest(longest.div_ceil(self.wish.block_size), self.useful_blocks(longest) + 1, holds);
        Ok((self.limits(longest, blocks), budget))
    }

    /// More blocks than this can never be in use; block numbers are 32 bits wide.
    fn useful_blocks(&self, longest: usize) -> usize {
        let per_sequence = longest.div_ceil(self.wish.block_size);
        self.wish.max_sequences.saturating_mul(per_sequence).min(u32::MAX as usize)
    }

    fn limits(&self, max_sequence_tokens: usize, num_blocks: usize) -> Limits {
        let Wish { max_step_tokens, max_sequences, block_size, kv_dtype, .. } = *self.wish;
        Limits { max_step_tokens, max_sequences, max_sequence_tokens, block_size, num_blocks, kv_dtype }
    }

    fn footprint(&self, limits: &Limits) -> Footprint {
        footprint(self.spec, self.wish.weights, limits, self.wish.ranks, self.device)
    }

    fn no_room(&self, footprint: &Footprint, budget: usize, kv_for: String) -> PlanError {
        let (weights, workspace, kv) = (footprint.weights, footprint.workspace(), footprint.kv_pool);
        PlanError::NoRoom { weights, workspace, budget, kv, kv_for }
    }
}

/// The largest number in `[low, high)` for which `fits` holds; it holds for `low` and for all numbers below a bound.
fn largest(mut low: usize, mut high: usize, fits: impl Fn(usize) -> bool) -> usize {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

impl Footprint {
    /// Names and bytes of what takes any, in the order they are printed.
    pub fn items(&self) -> Vec<(&'static str, usize)> {
        let mut items = vec![("weights", self.weights)];
        items.extend(self.beside());
        items.push(("KV cache", self.kv_pool));
        items.retain(|(_, bytes)| *bytes > 0);
        items
    }

    /// All but weights and KV pool, by name.
    fn beside(&self) -> [(&'static str, usize); 8] {
        [
            ("activations", self.activations),
            ("logits", self.logits),
            ("step tables", self.step),
            ("rotary tables", self.rope_tables),
            ("slot table", self.slot_table),
            ("product workspace", self.overheads.products),
            ("collective buffers", self.overheads.collectives),
            ("kernels and graphs", self.overheads.runtime),
        ]
    }

    /// All but weights and KV pool.
    pub fn workspace(&self) -> usize {
        self.beside().into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// Everything.
    pub fn total(&self) -> usize {
        self.weights.saturating_add(self.workspace()).saturating_add(self.kv_pool)
    }

    /// What the decoder allocates on its device.
    pub fn on_device(&self) -> usize {
        [self.weights, self.activations, self.logits, self.step, self.rope_tables, self.kv_pool]
            .into_iter()
            .fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
pub(crate) mod tests;
