//! The memory plan: the sizes of weights, workspace and KV pool, computed before anything is
//! allocated.
//!
//! All arithmetic saturates, so that absurd sizes are refused as too large.

mod error;
mod layer_split;

use millrace_backend::{KvFormat, KvSpec, Overheads, ProductShape, Sizing};
use millrace_numbers::formats::exact_format;
use millrace_numbers::{DType, Part, WeightFormat};

use crate::adapters::adaptable;
use crate::description::{
    AttentionHeads, DecoderSpec, HeadNormPlan, KeyChoice, RowsInFormat, WeightSlot, WeightStorage,
};
use crate::step_sizes::{activation_elements, attention, products, routing_bytes, step_size};
use crate::{AdapterLimits, KEPT_STATES, ShardLimits};

pub use error::PlanError;
pub use layer_split::{HostPlan, HostRequest, plan_split, with_layers};

/// Number of tokens in the KV pool if neither its size nor the free memory is known. The pool is
/// larger if one sequence needs more.
const DEFAULT_POOL_TOKENS: usize = 8192;

/// The most checkpoints of recurrent states if the operator does not give their number. Each takes
/// as much memory as the states of a sequence.
const MAX_USUAL_CHECKPOINTS: usize = 32;

/// The options of the operator that the plan depends on, and the memory of the device.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRequest {
    /// The formats of the weights.
    pub weights: WeightStorage,
    /// Format of the KV pool.
    pub kv_format: KvFormat,
    /// Number of tokens of the longest sequence. If absent, as many as the model and the memory
    /// allow.
    pub max_total_tokens: Option<usize>,
    /// Number of tokens in the KV pool. If absent, as many as the memory allows.
    pub max_batch_total_tokens: Option<usize>,
    /// Maximum number of tokens in one step.
    pub max_step_tokens: usize,
    /// Maximum number of sequences at once.
    pub max_sequences: usize,
    /// Number of ranks that the model is split over.
    pub ranks: usize,
    /// Number of tokens per block.
    pub block_size: usize,
    /// Free memory in bytes, if known.
    pub free: Option<usize>,
    /// The share of the free memory that everything together may fill if the pool has no given
    /// size.
    pub fraction: f64,
    /// A further bound on a pool that has no given size.
    pub pool_bound: Option<PoolBound>,
    /// Number of checkpoints of recurrent states. If absent, the
    /// [usual number](usual_state_checkpoints). A model without such states has none.
    pub state_checkpoints: Option<usize>,
    /// Maximum number of drafts of all rows of one step together.
    pub max_drafts: usize,
    /// The adapters.
    pub adapters: AdapterLimits,
    /// The draft model, if there is one.
    pub draft_model: Option<DraftRequest>,
}

/// A draft model, whose keys and values have as many blocks as those of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftRequest {
    /// The specification of the draft model.
    pub spec: DecoderSpec,
    /// The formats of its weights.
    pub weights: WeightStorage,
}

impl DraftRequest {
    /// Returns the memory of the draft model of a model with these limits, without the driver's.
    fn bytes(&self, limits: &ShardLimits, device: &impl Sizing) -> usize {
        let of_draft = self.limits(limits);
        let whole = footprint(&self.spec, self.weights.clone(), &of_draft, 1, device).on_device();
        // The states of each sequence that the head keeps: those of the model, and the last of its
        // own.
        let kept = limits.max_sequences.saturating_mul((KEPT_STATES + 1) * self.spec.hidden);
        let kept = if self.spec.reads_states { device.activation_bytes(kept) } else { 0 };
        whole.saturating_add(kept)
    }

    /// Returns the limits of the draft model of a model with these limits.
    pub fn limits(&self, limits: &ShardLimits) -> ShardLimits {
        match self.spec.reads_states {
            true => limits.of_mtp_head(),
            false => limits.of_draft_model(self.spec.max_positions),
        }
    }
}

/// The bound on the KV pool of a device that shares its memory with other programs. A pool that
/// has no given size is not larger, unless one sequence of the greatest length needs more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolBound {
    /// The share of the free memory.
    pub fraction: f64,
    /// The bytes on all ranks together.
    pub bytes: usize,
}

impl PoolBound {
    /// Returns the bytes that the pool of one of `ranks` ranks may have.
    fn of_rank(&self, free: usize, ranks: usize) -> usize {
        ((free as f64 * self.fraction) as usize).min(self.bytes / ranks.max(1))
    }
}

/// The memory that a shard takes, in bytes by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Matrices, norms and biases.
    pub weights: usize,
    /// Pools of adapters.
    pub adapters: usize,
    /// Copies of adapters in host memory.
    pub adapter_copies: usize,
    /// The draft model, with its keys and values.
    pub draft_model: usize,
    /// Activations of one step, and the scratch memory to compute them.
    pub activations: usize,
    /// Logits of one step, and the buffer that they are gathered in.
    pub logits: usize,
    /// State of steps and sequences on the device.
    pub step: usize,
    /// Cosines and sines.
    pub rope_tables: usize,
    /// Tokens and block tables of all sequences.
    pub slot_table: usize,
    /// Recurrent states of all sequences, and their checkpoints.
    pub states: usize,
    /// Keys and values.
    pub kv_pool: usize,
    /// Memory of the device's driver and libraries.
    pub overheads: Overheads,
}

/// A plan that fits into the memory.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// The limits that everything is allocated for.
    pub limits: ShardLimits,
    /// The memory that these limits need.
    pub footprint: Footprint,
    /// Free memory in bytes, if known.
    pub free: Option<usize>,
    /// The layers that the host computes, if the device does not hold all.
    pub host: Option<HostPlan>,
}

/// Returns the bytes of keys and values per token of a sequence, in all layers together.
pub fn kv_bytes_per_token(spec: &DecoderSpec, kv_format: KvFormat, device: &impl Sizing) -> usize {
    kv_bytes(spec, kv_format, 1, 1, device)
}

fn kv_bytes(
    spec: &DecoderSpec,
    format: KvFormat,
    blocks: usize,
    block_size: usize,
    device: &impl Sizing,
) -> usize {
    // A layer that reads the cache of another one has none.
    spec.layers.iter().filter_map(|layer| layer.attention.cached_heads()).fold(0, |sum: usize, heads| {
        sum.saturating_add(device.kv_bytes(&heads.kv_spec(blocks, block_size, format)))
    })
}

/// Returns the bytes of the recurrent states of `slots` sequences and of `checkpoints`, in all
/// layers together.
pub fn state_bytes(spec: &DecoderSpec, slots: usize, checkpoints: usize, device: &impl Sizing) -> usize {
    let recurrent = spec.layers.iter().filter_map(|layer| layer.attention.recurrent());
    recurrent
        .fold(0, |sum, layer| sum.saturating_add(device.states_bytes(&layer.state_spec(slots, checkpoints))))
}

/// Returns the number of checkpoints of recurrent states that a model has unless the operator says
/// otherwise: one for each sequence, but not more than [`MAX_USUAL_CHECKPOINTS`].
pub fn usual_state_checkpoints(spec: &DecoderSpec, max_sequences: usize) -> usize {
    if has_checkpoints(spec) { max_sequences.min(MAX_USUAL_CHECKPOINTS) } else { 0 }
}

/// Tells whether sequences of a model can begin with saved states: recurrent ones, of prompts that
/// can be divided.
fn has_checkpoints(spec: &DecoderSpec) -> bool {
    spec.is_recurrent() && !spec.is_bidirectional()
}

/// Returns the bytes of matrices, norms and biases.
pub fn weight_bytes(spec: &DecoderSpec, storage: &WeightStorage, device: &impl Sizing) -> usize {
    bytes_of(spec.slots(), spec, storage, device) + unscaled_norm_bytes(spec)
}

/// Returns the bytes of the pools of adapters, for weights of type `dtype`.
pub fn adapter_bytes(
    spec: &DecoderSpec,
    adapters: AdapterLimits,
    dtype: DType,
    device: &impl Sizing,
) -> usize {
    if adapters.count == 0 {
        return 0;
    }
    let bytes = |slot| device.adapters_bytes(&adapters.pool(spec, slot, dtype));
    adaptable(spec).into_iter().map(bytes).fold(0, usize::saturating_add)
}

/// Returns the bytes of the copies of adapters in host memory: for each adapter that may be loaded,
/// as many as the numbers of a place.
fn adapter_copy_bytes(spec: &DecoderSpec, adapters: AdapterLimits, dtype: DType) -> usize {
    if !adapters.keeps_copies() {
        return 0;
    }
    let copies = AdapterLimits { count: adapters.max_loaded, ..adapters };
    let bytes = |slot| copies.pool(spec, slot, dtype).bytes();
    adaptable(spec).into_iter().map(bytes).fold(0, usize::saturating_add)
}

/// Returns the bytes of the scales of 1 that norms of heads without a scale have on the device.
fn unscaled_norm_bytes(spec: &DecoderSpec) -> usize {
    let heads = spec.layers.iter().filter_map(|layer| layer.attention.heads());
    let norms = |heads: &AttentionHeads| {
        let of_head = usize::from(heads.head_norm == HeadNormPlan::Unscaled);
        match heads.kv_source {
            None => 2 * of_head + usize::from(heads.value_norm),
            Some(_) => of_head,
        }
    };
    heads.map(|heads| norms(heads) * heads.layout.head_dim * size_of::<f32>()).sum()
}

/// Returns the bytes of the weights in `slots`.
fn bytes_of(
    slots: impl IntoIterator<Item = WeightSlot>,
    spec: &DecoderSpec,
    storage: &WeightStorage,
    device: &impl Sizing,
) -> usize {
    let bytes = |slot: WeightSlot| match spec.shape(slot) {
        (rows, cols) if slot.is_vector() => rows * cols * size_of::<f32>(),
        (rows, cols) if spec.is_looked_up(slot) => device.embedding_bytes(rows, cols, storage.dtype),
        _ if slot.is_of_single_heads() => head_matrices_bytes(spec, slot, storage.dtype, device),
        (rows, cols) => {
            let experts = spec.stacked_experts(slot);
            let of_rows = |RowsInFormat { rows, format }| device.experts_bytes(experts, rows, cols, format);
            storage.rows(slot, (rows / experts, cols)).into_iter().map(of_rows).sum()
        }
    };
    slots.into_iter().map(bytes).sum()
}

/// Returns the bytes of the matrices of single heads that the weight for `slot` holds, which latent
/// attention multiplies by.
pub fn head_matrices_bytes(
    spec: &DecoderSpec,
    slot: WeightSlot,
    dtype: DType,
    device: &impl Sizing,
) -> usize {
    let heads = slot.layer().and_then(|index| spec.layers[index].attention.heads());
    let Some((count, plan)) = heads.and_then(|heads| Some((heads.layout.heads, heads.latent?))) else {
        return 0;
    };
    let keys = device.head_matrices_bytes(count, plan.plain_dim, plan.rank, dtype);
    keys.saturating_add(device.head_matrices_bytes(count, plan.rank, plan.value_dim, dtype))
}

/// Returns the bytes of all tables by position: those of rotations, and the factors on queries.
fn rope_bytes(spec: &DecoderSpec, limits: &ShardLimits) -> usize {
    // There are a cosine and a sine for each pair of rotated features.
    let scales = usize::from(spec.query_scale.is_some());
    let elements = scales + spec.ropes.iter().map(|rope| rope.rotary_dim).sum::<usize>();
    // A table for two axes has a position more.
    let more = spec.ropes.iter().filter(|rope| rope.two_axes).map(|rope| rope.rotary_dim).sum::<usize>();
    limits.max_sequence_tokens.saturating_mul(elements).saturating_add(more).saturating_mul(size_of::<f32>())
}

/// Returns the memory that one of `ranks` ranks takes with these limits. `spec` is the share of the
/// rank.
pub fn footprint(
    spec: &DecoderSpec,
    storage: impl Into<WeightStorage>,
    limits: &ShardLimits,
    ranks: usize,
    device: &impl Sizing,
) -> Footprint {
    let storage = storage.into();
    let singles = |elements: usize| elements.saturating_mul(size_of::<f32>());
    let ShardLimits { max_step_tokens, max_sequences, block_size, num_blocks, .. } = *limits;
    let max_outputs = limits.max_outputs();
    // A rank that holds a part of the vocabulary has a buffer for its own columns beside the whole
    // rows.
    let is_whole = spec.vocab_rows == (0..spec.vocab);
    let own_columns = if is_whole { 0 } else { spec.vocab_rows.len() };
    Footprint {
        weights: weight_bytes(spec, &storage, device),
        adapters: adapter_bytes(spec, limits.adapters, storage.dtype, device),
        adapter_copies: adapter_copy_bytes(spec, limits.adapters, storage.dtype),
        draft_model: 0,
        activations: device
            .activation_bytes(activation_elements(spec, limits))
            .saturating_add(routing_bytes(spec, max_step_tokens, device))
            .saturating_add(device.scratch_bytes(&products(spec, &storage, limits))),
        logits: singles(max_outputs.saturating_mul(spec.logit_cols() + own_columns))
            .saturating_add(device.gather_bytes(ranks, max_outputs.saturating_mul(own_columns))),
        step: device.step_bytes(&step_size(spec, limits, &attention(&spec.layers))),
        rope_tables: rope_bytes(spec, limits),
        slot_table: limits.slot_table_bytes(spec.vocab),
        states: state_bytes(spec, max_sequences, limits.state_checkpoints, device),
        kv_pool: kv_bytes(spec, limits.kv_format, num_blocks, block_size, device),
        overheads: device.overheads(ranks),
    }
}

/// Returns an upper bound on the number of allocations that a decoder makes on its device.
pub fn allocations(spec: &DecoderSpec) -> usize {
    const BUFFERS: usize = 64;
    // A quantized matrix has scales beside it, and may have an order of its columns.
    3 * spec.slots().len() + 2 * spec.layers.len() + 3 * spec.ropes.len() + BUFFERS
}

/// Decides the length of sequences and the number of blocks in the KV pool.
///
/// # Errors
/// If not even one sequence fits. The sequence has the requested length, or one block if
/// no length was requested.
pub fn plan(
    spec: &DecoderSpec,
    request: &PlanRequest,
    device: &impl Sizing,
) -> Result<MemoryPlan, PlanError> {
    check_sizes(spec, request)?;
    let planner = PlanSearch { spec, request, device };
    let (limits, budget) = match (request.max_batch_total_tokens, request.free) {
        (Some(tokens), free) => (planner.given_pool(tokens)?, free.unwrap_or(usize::MAX)),
        (None, Some(free)) => {
            let bound = request.pool_bound.map_or(usize::MAX, |bound| bound.of_rank(free, request.ranks));
            planner.largest_pool((free as f64 * request.fraction) as usize, bound)?
        }
        (None, None) => {
            let longest = request.max_total_tokens.unwrap_or(0).min(spec.max_positions);
            (planner.given_pool(longest.max(DEFAULT_POOL_TOKENS))?, usize::MAX)
        }
    };
    let footprint = planner.footprint(&limits);
    if footprint.total() > budget {
        let tokens = limits.num_blocks * limits.block_size;
        return Err(planner.no_room(&footprint, budget, format!("{tokens} tokens")));
    }
    Ok(MemoryPlan { limits, footprint, free: request.free, host: None })
}

/// Refuses sizes of 0, and sequences in which the model would choose keys.
fn check_sizes(spec: &DecoderSpec, request: &PlanRequest) -> Result<(), PlanError> {
    for (flag, size) in [
        ("--max-total-tokens", request.max_total_tokens.unwrap_or(1)),
        ("--max-batch-total-tokens", request.max_batch_total_tokens.unwrap_or(1)),
        ("--max-batch-prefill-tokens", request.max_step_tokens),
        ("the number of sequences", request.max_sequences),
        ("the block size", request.block_size),
    ] {
        if size == 0 {
            return Err(PlanError::Zero(flag));
        }
    }
    match (request.max_total_tokens, spec.key_choice) {
        (Some(asked), Some(KeyChoice { keys, .. })) if asked > keys => {
            Err(PlanError::ChosenKeys { asked, keys })
        }
        _ => Ok(()),
    }
}

/// The search for the largest limits that fit.
struct PlanSearch<'a, D> {
    spec: &'a DecoderSpec,
    request: &'a PlanRequest,
    device: &'a D,
}

impl<D: Sizing> PlanSearch<'_, D> {
    /// Returns the length of the longest sequence that the model and the operator allow.
    fn longest(&self) -> usize {
        self.request.max_total_tokens.unwrap_or(usize::MAX).min(self.spec.max_positions)
    }

    /// Returns the smallest length that the longest sequence may be limited to.
    fn shortest(&self) -> usize {
        match self.request.max_total_tokens {
            Some(_) => self.longest(),
            None => self.longest().min(self.request.block_size),
        }
    }

    /// Returns the limits with a pool of one sequence of `longest` tokens.
    fn one_sequence(&self, longest: usize) -> ShardLimits {
        self.limits(longest, longest.div_ceil(self.request.block_size))
    }

    /// Returns the limits with a pool of this many tokens, in whole blocks.
    fn given_pool(&self, tokens: usize) -> Result<ShardLimits, PlanError> {
        let blocks = tokens.div_ceil(self.request.block_size);
        let (longest, pool) = (self.longest(), blocks.saturating_mul(self.request.block_size));
        if self.request.max_total_tokens.is_some() && pool < longest {
            return Err(PlanError::PoolTooSmall { longest, pool });
        }
        let longest = longest.min(pool);
        Ok(self.limits(longest, blocks.min(self.useful_blocks(longest))))
    }

    /// Returns the limits with as many blocks as `budget` allows for everything and `bound` for the
    /// pool, and `budget`.
    fn largest_pool(&self, budget: usize, bound: usize) -> Result<(ShardLimits, usize), PlanError> {
        let fits = |longest: usize| self.footprint(&self.one_sequence(longest)).total() <= budget;
        let mut longest = self.longest();
        if !fits(longest) {
            let shortest = self.shortest();
            if !fits(shortest) {
                let footprint = self.footprint(&self.one_sequence(shortest));
                let kv_for = format!("one sequence of {shortest} tokens");
                return Err(self.no_room(&footprint, budget, kv_for));
            }
            longest = largest(shortest, longest, fits);
        }
        // The device's state of steps may grow with the pool too.
        let holds = |blocks: usize| {
            let footprint = self.footprint(&self.limits(longest, blocks));
            footprint.total() <= budget && footprint.kv_pool <= bound
        };
        let blocks =
            largest(longest.div_ceil(self.request.block_size), self.useful_blocks(longest) + 1, holds);
        Ok((self.limits(longest, blocks), budget))
    }

    /// Returns the most blocks that can be in use at once. Block numbers have 32 bits.
    fn useful_blocks(&self, longest: usize) -> usize {
        let per_sequence = longest.div_ceil(self.request.block_size);
        self.request.max_sequences.saturating_mul(per_sequence).min(u32::MAX as usize)
    }

    fn limits(&self, max_sequence_tokens: usize, num_blocks: usize) -> ShardLimits {
        let PlanRequest { max_step_tokens, max_sequences, block_size, kv_format, .. } = *self.request;
        let usual = usual_state_checkpoints(self.spec, max_sequences);
        let wanted = self.request.state_checkpoints.filter(|_| has_checkpoints(self.spec));
        ShardLimits {
            max_step_tokens,
            max_sequences,
            max_sequence_tokens,
            block_size,
            num_blocks,
            kv_format,
            state_checkpoints: wanted.unwrap_or(usual),
            max_drafts: self.request.max_drafts,
            adapters: self.request.adapters,
        }
    }

    fn footprint(&self, limits: &ShardLimits) -> Footprint {
        let PlanRequest { weights, ranks, draft_model, .. } = self.request;
        let own = footprint(self.spec, weights.clone(), limits, *ranks, self.device);
        let draft_model = draft_model.as_ref().map_or(0, |draft| draft.bytes(limits, self.device));
        Footprint { draft_model, ..own }
    }

    fn no_room(&self, footprint: &Footprint, budget: usize, kv_for: String) -> PlanError {
        let (weights, workspace, kv) = (footprint.weights, footprint.workspace(), footprint.kv_pool);
        PlanError::NoRoom { weights, workspace, budget, kv, kv_for }
    }
}

/// Returns the largest number in `[low, high)` for which `fits` holds. It must hold for `low`, and
/// if it holds for a number, also for all smaller ones.
fn largest(mut low: usize, mut high: usize, fits: impl Fn(usize) -> bool) -> usize {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

impl Footprint {
    /// Returns the names and bytes of all purposes that take memory, in the order of printing.
    pub fn items(&self) -> Vec<(&'static str, usize)> {
        let mut items = vec![
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("copies of adapters", self.adapter_copies),
            ("draft model", self.draft_model),
        ];
        items.extend(self.workspace_items());
        items.push(("KV cache", self.kv_pool));
        items.retain(|(_, bytes)| *bytes > 0);
        items
    }

    /// Returns everything but weights and KV pool, by name.
    fn workspace_items(&self) -> [(&'static str, usize); 9] {
        [
            ("activations", self.activations),
            ("logits", self.logits),
            ("step tables", self.step),
            ("rotary tables", self.rope_tables),
            ("slot table", self.slot_table),
            ("recurrent states", self.states),
            ("product workspace", self.overheads.products),
            ("collective buffers", self.overheads.collectives),
            ("kernels and graphs", self.overheads.runtime),
        ]
    }

    /// Returns the bytes of everything but weights and KV pool.
    pub fn workspace(&self) -> usize {
        self.workspace_items().into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// Returns the bytes of everything.
    pub fn total(&self) -> usize {
        let beside = self.adapters.saturating_add(self.adapter_copies).saturating_add(self.draft_model);
        self.weights.saturating_add(beside).saturating_add(self.workspace()).saturating_add(self.kv_pool)
    }

    /// Returns the bytes that the decoder allocates on its device.
    pub fn on_device(&self) -> usize {
        [
            self.weights,
            self.adapters,
            self.draft_model,
            self.activations,
            self.logits,
            self.step,
            self.rope_tables,
            self.states,
            self.kv_pool,
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }
}

/// A device without padding and workspace, for estimates without a device. It keeps the
/// same stored formats as the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpaddedDevice;

impl Sizing for UnpaddedDevice {
    fn stored_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        exact_format(parts)
    }

    fn quantizes_heads(&self) -> bool {
        true
    }

    fn stacks(&self, format: WeightFormat) -> bool {
        !matches!(format, WeightFormat::Dense(_))
    }

    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize {
        format.bytes(out, cols)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        spec.bytes()
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }
}

#[cfg(test)]
mod tests;
