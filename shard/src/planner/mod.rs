//! What a model costs when it is split over several devices, worked out before there are any.
//!
//! Pure arithmetic on the share of rank 0, which holds at least as much as every other: weights and KV cache are those of
//! [`crate::plan`] on a device that pads nothing, the collectives those that [`crate::decoder`] calls. Byte counts
//! saturate, so that absurd sizes come out as too large.

mod hardware;
mod report;

use millrace_kernels::{DType, KvSpec};

use crate::Limits;
use crate::model::{DecoderSpec, Slot, Storage};
use crate::plan::{self, Device, Unpadded};
use crate::split::{Indivisible, Split};

pub use hardware::{
    COMPUTE_FRACTION, DEFAULT_LINK_LATENCY, GPUS, Gpu, Hardware, LINK_FRACTION, Link, MEMORY_FRACTION,
    MEMORY_SHARE,
};
pub use report::Report;

/// Tokens per block of the KV cache.
const BLOCK_SIZE: usize = 16;

/// What the devices are to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Sequences that get a token in each decode step.
    pub batch: usize,
    /// Prompt tokens of a prefill step.
    pub prefill_tokens: usize,
    /// Lengths in tokens that each of the sequences may have.
    pub contexts: Vec<usize>,
}

/// The largest share of a model among `world_size` ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Ranks in the group.
    pub world_size: usize,
    /// Bytes of this rank's weights.
    pub weights: usize,
    /// Bytes of the weights of all ranks together.
    pub all_weights: usize,
    /// Bytes of keys and values that one token leaves in this rank's cache.
    pub kv_per_token: usize,
    spec: DecoderSpec,
    storage: Storage,
    kv_dtype: DType,
}

/// What one step takes of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Bytes of weights, keys and values read from the device's memory. The traffic of activations is left out.
    pub read: usize,
    /// Floating-point operations; a multiply-add counts as two. Only matrix products and attention are counted.
    pub operations: f64,
    /// Collectives that the rank takes part in.
    pub collectives: usize,
    /// Bytes that the rank sends in them, and receives as well.
    pub sent: usize,
}

impl Share {
    /// Cuts `whole` for `world_size` ranks, with weights as `storage` says and keys and values as `kv_dtype`.
    ///
    /// Norms, which every rank holds, key/value heads that several ranks hold, and the padding of a vocabulary that does
    /// not divide are all counted.
    ///
    /// # Errors
    /// If the model cannot be cut so; the error names the sizes that work.
    pub fn new(
        whole: &DecoderSpec,
        world_size: usize,
        storage: impl Into<Storage>,
        kv_dtype: DType,
    ) -> Result<Self, Indivisible> {
        let storage = storage.into();
        let of_rank = |rank: usize| Split { rank, world_size }.spec(whole);
        let spec = of_rank(0)?;
        let weights = plan::weight_bytes(&spec, storage, &Unpadded);
        let mut all_weights = weights;
        for rank in 1..world_size {
            all_weights += plan::weight_bytes(&of_rank(rank)?, storage, &Unpadded);
        }
        let kv_per_token = plan::kv_bytes_per_token(&spec, kv_dtype, &Unpadded);
        Ok(Share { world_size, weights, all_weights, kv_per_token, spec, storage, kv_dtype })
    }

    /// Bytes that a step computes with, for steps of all prompt tokens and the whole batch of `load`.
    pub fn workspace(&self, load: &Load) -> usize {
        let limits = Limits {
            max_step_tokens: load.prefill_tokens.saturating_add(load.batch),
            max_sequences: load.batch,
            max_sequence_tokens: load.contexts.iter().copied().max().unwrap_or(1),
            block_size: BLOCK_SIZE,
            num_blocks: 0,
            kv_dtype: self.kv_dtype,
        };
        plan::footprint(&self.spec, self.storage, &limits, self.world_size, &Unpadded).workspace()
    }

    /// Tokens of KV cache that `memory` bytes have room for beside weights and workspace; none if these alone do not fit.
    /// [`MEMORY_SHARE`] of the memory is used.
    pub fn kv_tokens(&self, memory: usize, load: &Load) -> Option<usize> {
        let usable = (memory as f64 * MEMORY_SHARE) as usize;
        let left = usable.checked_sub(self.weights.saturating_add(self.workspace(load)))?;
        Some(left / self.kv_per_token.max(1)).filter(|&tokens| tokens > 0)
    }

    /// A step that gives each of `batch` sequences one more token; each then has `context` tokens.
    pub fn decode(&self, batch: usize, context: usize) -> Step {
        let mut keys_and_values = 0;
        let mut attention = 0.0;
        for layer in &self.spec.layers {
            let seen = layer.window.unwrap_or(context).min(context);
            let qkv = layer.qkv;
            let of_sequence = Unpadded.kv_bytes(&KvSpec {
                blocks: 1,
                block_size: seen,
                kv_heads: qkv.kv_heads,
                head_dim: qkv.head_dim,
                dtype: self.kv_dtype,
            });
            keys_and_values = of_sequence.saturating_mul(batch).saturating_add(keys_and_values);
            attention += attention_operations(qkv.heads * qkv.head_dim, batch as f64 * seen as f64);
        }
        Step {
            read: self.weights_read().saturating_add(keys_and_values),
            operations: self.product_operations(batch, batch) + attention,
            ..self.collectives(batch, batch)
        }
    }

    /// A step that computes the first `tokens` tokens of one prompt and chooses the next.
    pub fn prefill(&self, tokens: usize) -> Step {
        let attention = self.spec.layers.iter().map(|layer| {
            let pairs = attended_pairs(tokens as f64, layer.window.map(|window| window as f64));
            attention_operations(layer.qkv.heads * layer.qkv.head_dim, pairs)
        });
        Step {
            read: self.kv_per_token.saturating_mul(tokens).saturating_add(self.weights_read()),
            operations: self.product_operations(tokens, 1) + attention.sum::<f64>(),
            ..self.collectives(tokens, 1)
        }
    }

    /// Bytes of the weights that a step reads. An embedding that is not also the head is only looked up.
    fn weights_read(&self) -> usize {
        let (rows, cols) = self.spec.shape(Slot::Embedding);
        let format = self.storage.matrix(Slot::Embedding);
        let looked_up = if self.spec.tied_head { 0 } else { Unpadded.matrix_bytes(rows, cols, format) };
        self.weights - looked_up
    }

    /// Operations of all matrix products: 2 per weight and row. The layers have `n` rows, the head `m`.
    fn product_operations(&self, n: usize, m: usize) -> f64 {
        let elements = |slot: Slot| {
            let (rows, cols) = self.spec.shape(slot);
            rows as f64 * cols as f64
        };
        let in_layer = |slot: &Slot| matches!(slot, Slot::Layer(..)) && !slot.is_vector();
        let layers: f64 = self.spec.slots().into_iter().filter(in_layer).map(elements).sum();
        2.0 * (n as f64 * layers + m as f64 * elements(Slot::Head))
    }

    /// The collectives of a step of `n` tokens and `m` outputs, in a ring of N ranks:
    ///
    /// - after the embedding, and twice per layer, an all-reduce of `[n, hidden]` numbers of the weights' type, as cards exchange them
    ///   (processors do so in single precision): each rank sends 2 (N - 1) / N of their bytes;
    /// - an all-gather of the logits in single precision, `[m, vocab_rows]` of each rank: (N - 1) times the bytes of one such part;
    /// - a broadcast of `m` token ids, which a rank passes on once.
    fn collectives(&self, n: usize, m: usize) -> Step {
        let none = Step { read: 0, operations: 0.0, collectives: 0, sent: 0 };
        if self.world_size == 1 {
            return none;
        }
        let bytes = |rows: usize, cols: usize, size: usize| rows.saturating_mul(cols).saturating_mul(size);
        let others = self.world_size - 1;
        let reduces = 1 + 2 * self.spec.layers.len();
        let reduce = bytes(n, self.spec.hidden, self.storage.dtype.size());
        let reduce = reduce.saturating_mul(2 * others).div_ceil(self.world_size);
        let gather = bytes(m, self.spec.vocab_rows.len(), size_of::<f32>()).saturating_mul(others);
        let broadcast = m.saturating_mul(size_of::<u32>());
        Step {
            collectives: reduces + 2,
            sent: reduce.saturating_mul(reduces).saturating_add(gather).saturating_add(broadcast),
            ..none
        }
    }
}

/// Operations of attention with `features` query features on so many pairs of query and key: 2 per feature and pair for the
/// dot products, and 2 for the sum of the values.
fn attention_operations(features: usize, pairs: f64) -> f64 {
    4.0 * features as f64 * pairs
}

/// Pairs of query and key in a prompt of `tokens` tokens, each of which sees itself and those before it, `window` at most.
fn attended_pairs(tokens: f64, window: Option<f64>) -> f64 {
    let triangle = |length: f64| length * (length + 1.0) / 2.0;
    let window = window.unwrap_or(tokens).min(tokens);
    triangle(window) + (tokens - window) * window
}

impl Step {
    /// Seconds that the step takes, if what it depends on is known of the hardware.
    ///
    /// The device reads at [`MEMORY_FRACTION`] of its bandwidth while it computes at [`COMPUTE_FRACTION`] of its peak, so the
    /// slower of both counts. The collectives come on top: each takes the link's latency, and what is sent goes at
    /// [`LINK_FRACTION`] of the link's bandwidth.
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
