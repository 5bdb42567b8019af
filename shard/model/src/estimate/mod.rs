//! Estimates of the memory and speed of a model that is split over several devices, computed
//! without any device.
//!
//! The estimates are arithmetic on the share of rank 0, which holds at least as much as every other
//! rank: weights and KV cache are those of [`crate::memory_plan`] on a device without padding, and
//! the collectives are those of the decoder. Byte counts saturate, so that absurd sizes
//! appear as too large.

mod hardware;
mod layer_split;
mod report;

use millrace_backend::{KeyWindow, KvFormat, Sizing};

use crate::description::{AttentionHeads, DecoderSpec, LayerSpec, WeightSlot, WeightStorage};
use crate::memory_plan::{self, UnpaddedDevice, usual_state_checkpoints};
use crate::split::{Indivisible, Split};
use crate::{AdapterLimits, ShardLimits};

pub use hardware::{
    COMPUTE_FRACTION, DEFAULT_LINK_LATENCY, GPUS, GpuLink, GpuModel, Hardware, LINK_FRACTION,
    MEMORY_FRACTION, MEMORY_SHARE,
};
pub use layer_split::LayerSplitEstimate;
pub use report::EstimateReport;

/// Number of tokens per block of the KV cache.
const BLOCK_SIZE: usize = 16;

/// The work that the devices do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Number of sequences that get a token in each decode step.
    pub batch: usize,
    /// Number of prompt tokens of a prefill step.
    pub prefill_tokens: usize,
    /// Lengths of the sequences in tokens. There is an estimate for each length.
    pub contexts: Vec<usize>,
}

/// The estimate for the largest share of a model among `world_size` ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardEstimate {
    /// Number of ranks in the group.
    pub world_size: usize,
    /// Bytes of this rank's weights.
    pub weights: usize,
    /// Bytes of the weights of all ranks together.
    pub all_weights: usize,
    /// Bytes of keys and values per token of this rank's cache.
    pub kv_per_token: usize,
    spec: DecoderSpec,
    storage: WeightStorage,
    kv_format: KvFormat,
}

/// The work of one rank in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepEstimate {
    /// Bytes of weights, keys, values and recurrent states that are read from the device's memory.
    /// The traffic of activations is not counted.
    pub read: usize,
    /// Number of floating-point operations. A multiply-add counts as two. Only matrix products and
    /// attention are counted.
    pub operations: f64,
    /// Number of collectives.
    pub collectives: usize,
    /// Bytes that the rank sends in collectives. It receives the same number.
    pub sent: usize,
}

impl ShardEstimate {
    /// Estimates `whole` on `world_size` ranks, with weights in the formats of `storage` and a KV
    /// cache in `kv_format`.
    ///
    /// The estimate counts norms, which every rank holds, key/value heads that several ranks hold,
    /// and the padding of the vocabulary.
    ///
    /// # Errors
    /// If the model cannot be split over this number of ranks. The error names the sizes that work.
    pub fn new(
        whole: &DecoderSpec,
        world_size: usize,
        storage: impl Into<WeightStorage>,
        kv_format: impl Into<KvFormat>,
    ) -> Result<Self, Indivisible> {
        let (storage, kv_format) = (storage.into(), kv_format.into());
        let of_rank = |rank: usize| Split { rank, world_size }.spec(whole);
        let spec = of_rank(0)?;
        let weights = memory_plan::weight_bytes(&spec, &storage, &UnpaddedDevice);
        let mut all_weights = weights;
        for rank in 1..world_size {
            all_weights += memory_plan::weight_bytes(&of_rank(rank)?, &storage, &UnpaddedDevice);
        }
        let kv_per_token = memory_plan::kv_bytes_per_token(&spec, kv_format, &UnpaddedDevice);
        Ok(ShardEstimate { world_size, weights, all_weights, kv_per_token, spec, storage, kv_format })
    }

    /// Returns the bytes of workspace for a step with all prompt tokens and the whole batch of
    /// `load`.
    pub fn workspace(&self, load: &Workload) -> usize {
        let limits = ShardLimits {
            max_step_tokens: load.prefill_tokens.saturating_add(load.batch),
            max_sequences: load.batch,
            max_sequence_tokens: load.contexts.iter().copied().max().unwrap_or(1),
            block_size: BLOCK_SIZE,
            num_blocks: 0,
            kv_format: self.kv_format,
            state_checkpoints: usual_state_checkpoints(&self.spec, load.batch),
            max_drafts: 0,
            adapters: AdapterLimits::NONE,
        };
        memory_plan::footprint(&self.spec, self.storage.clone(), &limits, self.world_size, &UnpaddedDevice)
            .workspace()
    }

    /// Returns the number of tokens of KV cache that fit into `memory` bytes beside weights and
    /// workspace. Returns `None` if these alone do not fit. [`MEMORY_SHARE`] of the memory is used.
    pub fn kv_tokens(&self, memory: usize, load: &Workload) -> Option<usize> {
        let usable = (memory as f64 * MEMORY_SHARE) as usize;
        let left = usable.checked_sub(self.weights.saturating_add(self.workspace(load)))?;
        Some(left / self.kv_per_token.max(1)).filter(|&tokens| tokens > 0)
    }

    /// Estimates a decode step: each of `batch` sequences gets one more token, and then has
    /// `context` tokens.
    pub fn decode(&self, batch: usize, context: usize) -> StepEstimate {
        let mut keys_and_values = 0;
        let mut attention = 0.0;
        for layer in &self.spec.layers {
            attention += recurrent_operations(layer, batch as f64);
            let Some(heads) = layer.attention.heads() else { continue };
            let seen = layer.attention.key_window().map_or(context, KeyWindow::len).min(context);
            let layout = heads.layout;
            let of_sequence = UnpaddedDevice.kv_bytes(&heads.kv_spec(1, seen, self.kv_format));
            keys_and_values = of_sequence.saturating_mul(batch).saturating_add(keys_and_values);
            attention += attention_operations(layout.heads * layout.head_dim, batch as f64 * seen as f64);
        }
        StepEstimate {
            read: self
                .weights_read(batch)
                .saturating_add(keys_and_values)
                .saturating_add(memory_plan::state_bytes(&self.spec, batch, 0, &UnpaddedDevice)),
            operations: self.product_operations(batch, batch) + attention,
            ..self.collectives(batch, batch)
        }
    }

    /// Estimates a prefill step: it computes the first `tokens` tokens of one prompt and samples
    /// the next.
    pub fn prefill(&self, tokens: usize) -> StepEstimate {
        let attention = self.spec.layers.iter().filter_map(|layer| {
            let AttentionHeads { layout, .. } = layer.attention.heads()?;
            let pairs =
                attended_pairs(tokens as f64, layer.attention.key_window().map(|window| window.len() as f64));
            Some(attention_operations(layout.heads * layout.head_dim, pairs))
        });
        let recurrences = self.spec.layers.iter().map(|layer| recurrent_operations(layer, tokens as f64));
        StepEstimate {
            read: self.kv_per_token.saturating_mul(tokens).saturating_add(self.weights_read(tokens)),
            operations: self.product_operations(tokens, 1)
                + attention.sum::<f64>()
                + recurrences.sum::<f64>(),
            ..self.collectives(tokens, 1)
        }
    }

    /// Returns the bytes of the weights that a step of `n` tokens reads. Of an embedding that is
    /// not also the head, and of per-layer embeddings, a step reads only a few rows, which are not
    /// counted. Experts are assumed
    /// to be chosen equally often.
    fn weights_read(&self, n: usize) -> usize {
        let tables = [WeightSlot::Embedding, WeightSlot::PerLayerEmbedding];
        let tables = tables.into_iter().filter(|&slot| self.spec.is_looked_up(slot)).map(|slot| {
            let (rows, cols) = self.spec.shape(slot);
            UnpaddedDevice.matrix_bytes(rows, cols, self.storage.matrix(slot, cols))
        });
        self.weights - tables.sum::<usize>() - self.experts_unread(n)
    }

    /// Returns the bytes of the experts that no token of a step of `n` tokens chooses.
    fn experts_unread(&self, n: usize) -> usize {
        let unread = |slot: WeightSlot| {
            let (rows, cols) = self.spec.shape(slot);
            let bytes = UnpaddedDevice.matrix_bytes(rows, cols, self.storage.matrix(slot, cols));
            bytes as f64 * (1.0 - self.chosen_share(slot)).powf(n as f64)
        };
        let of_experts = self.spec.slots().into_iter().filter(|slot| slot.info().per_expert);
        of_experts.map(unread).sum::<f64>() as usize
    }

    /// Returns the share of a weight that one token is multiplied by: that of its experts, or all.
    fn chosen_share(&self, slot: WeightSlot) -> f64 {
        let experts = slot.layer().and_then(|index| self.spec.layers[index].mlp.experts());
        match experts.filter(|_| slot.info().per_expert) {
            Some(experts) => experts.router.top_k as f64 / experts.count() as f64,
            None => 1.0,
        }
    }

    /// Returns the number of operations of all matrix products: 2 per weight and row. The layers
    /// have `n` rows, the head `m`.
    fn product_operations(&self, n: usize, m: usize) -> f64 {
        let elements = |slot: WeightSlot| {
            let (rows, cols) = self.spec.shape(slot);
            rows as f64 * cols as f64 * self.chosen_share(slot)
        };
        let in_layer = |slot: &WeightSlot| {
            let is_for_layers = slot.layer().is_some() || *slot == WeightSlot::PerLayerProjection;
            is_for_layers && !slot.is_vector()
        };
        let layers: f64 = self.spec.slots().into_iter().filter(in_layer).map(elements).sum();
        2.0 * (n as f64 * layers + m as f64 * elements(WeightSlot::Head))
    }

    /// Estimates the collectives of a step of `n` tokens and `m` outputs, in a ring of N ranks:
    ///
    /// - after the embedding, and after each branch of a layer, an all-reduce of `[n, hidden]`
    ///   numbers of the weights' type, as GPUs do (CPUs use single precision): each rank sends
    ///   `2 (N - 1) / N` of their bytes;
    /// - an all-gather of the logits in single precision, `[m, vocab_rows]` of each rank: (N - 1)
    ///   times the bytes of one such part;
    /// - a broadcast of `m` token ids, which a rank passes on once.
    fn collectives(&self, n: usize, m: usize) -> StepEstimate {
        let none = StepEstimate { read: 0, operations: 0.0, collectives: 0, sent: 0 };
        if self.world_size == 1 {
            return none;
        }
        let bytes = |rows: usize, cols: usize, size: usize| rows.saturating_mul(cols).saturating_mul(size);
        let others = self.world_size - 1;
        let reduces = 1 + self.spec.layers.iter().map(LayerSpec::branches).sum::<usize>();
        let reduce = bytes(n, self.spec.hidden, self.storage.dtype.size());
        let reduce = reduce.saturating_mul(2 * others).div_ceil(self.world_size);
        let gather = bytes(m, self.spec.vocab_rows.len(), size_of::<f32>()).saturating_mul(others);
        let broadcast = m.saturating_mul(size_of::<u32>());
        StepEstimate {
            collectives: reduces + 2,
            sent: reduce.saturating_mul(reduces).saturating_add(gather).saturating_add(broadcast),
            ..none
        }
    }
}

/// Returns the number of operations of attention with `features` query features on `pairs` pairs of
/// query and key: 2 per feature and pair for the dot products, and 2 for the sum of the values.
fn attention_operations(features: usize, pairs: f64) -> f64 {
    4.0 * features as f64 * pairs
}

/// Returns the number of operations of a recurrent layer for `tokens` tokens: a multiply-add for
/// each weight of the convolution, and for each number of a matrix its decay and three
/// multiply-adds.
fn recurrent_operations(layer: &LayerSpec, tokens: f64) -> f64 {
    let Some(layer) = layer.attention.recurrent() else { return 0.0 };
    let state = layer.state_spec(1, 0);
    let matrices = state.slot_elements() - state.window_elements();
    tokens * (2.0 * (state.channels * state.taps) as f64 + 7.0 * matrices as f64)
}

/// Returns the number of pairs of query and key in a prompt of `tokens` tokens. Each token attends
/// to itself and the tokens before it, at most `window` in all.
fn attended_pairs(tokens: f64, window: Option<f64>) -> f64 {
    let triangle = |length: f64| length * (length + 1.0) / 2.0;
    let window = window.unwrap_or(tokens).min(tokens);
    triangle(window) + (tokens - window) * window
}

impl StepEstimate {
    /// Returns the time of the step in seconds, if the numbers that it depends on are known.
    ///
    /// The device reads at [`MEMORY_FRACTION`] of its bandwidth while it computes at
    /// [`COMPUTE_FRACTION`] of its peak, so the slower of both counts. The time of the collectives
    /// is added: the link's latency for each, and the time to send the bytes at [`LINK_FRACTION`]
    /// of the link's bandwidth.
    pub fn seconds(&self, hardware: &Hardware) -> Option<f64> {
        let reading = self.read as f64 / (hardware.memory_bandwidth? * MEMORY_FRACTION);
        let computing = self.operations / (hardware.compute? * COMPUTE_FRACTION);
        let exchanging = match self.collectives {
            0 => 0.0,
            count => {
                let latency = hardware.link_latency.unwrap_or(DEFAULT_LINK_LATENCY);
                count as f64 * latency + self.sent as f64 / (hardware.link_bandwidth? * LINK_FRACTION)
            }
        };
        Some(reading.max(computing) + exchanging)
    }
}

#[cfg(test)]
mod tests;
