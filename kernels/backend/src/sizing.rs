//! How many bytes things take on a device, for the memory plan.

use millrace_numbers::{DType, Part, WeightFormat};

use crate::adapters::AdapterSpec;
use crate::experts::RoutingSpec;
use crate::format::{KvFormat, KvSpec};
use crate::ops::AttentionSpec;
use crate::recurrent::StateSpec;

/// The sizes for which a device allocates its step queue.
#[derive(Debug, Clone, Copy)]
pub struct StepSize<'a> {
    /// Tokens of all rows of a step together.
    pub tokens: usize,
    /// Sequences in a step, and slots for sequences altogether.
    pub rows: usize,
    /// Tokens of the longest sequence.
    pub sequence_tokens: usize,
    /// Blocks of the caches that the steps use.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Format of the caches.
    pub kv_format: KvFormat,
    /// Logits of a row that is sampled from.
    pub vocab: usize,
    /// The kinds of attention that the layers use.
    pub attention: &'a [AttentionSpec],
}

impl StepSize<'_> {
    /// Returns the number of blocks in the longest block table.
    pub fn table_blocks(&self) -> usize {
        self.sequence_tokens.div_ceil(self.block_size)
    }
}

/// One kind of matrix product that steps will ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductShape {
    /// Columns of the weight.
    pub inputs: usize,
    /// Rows of the weight.
    pub outputs: usize,
    /// Format of the weight.
    pub format: WeightFormat,
    /// Whether the results are logits.
    pub logits: bool,
    /// The largest number of activation rows that are multiplied at once.
    pub rows: usize,
}

/// Bytes of device memory that the device's driver and libraries take for themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overheads {
    /// Workspace of matrix products beside their operands.
    pub products: usize,
    /// Buffers of the exchange between ranks.
    pub collectives: usize,
    /// Loaded kernels and recorded graphs.
    pub runtime: usize,
}

/// Sizes in bytes of everything that the memory plan counts. Nothing is allocated here.
///
/// Results saturate where a product of the arguments does not fit a `usize`.
pub trait Sizing {
    /// Returns the format in which the device keeps a matrix of these stored parts without rounding
    /// them, if they are quantized and the device multiplies by them. All other matrices are
    /// converted to a format of the caller's choice.
    fn stored_format(&self, _parts: &[Part]) -> Option<WeightFormat> {
        None
    }

    /// Tells whether the device multiplies by a quantized head, also by one that is the embedding:
    /// it then looks up the rows of the embedding where they are stored.
    fn quantizes_heads(&self) -> bool {
        false
    }

    /// Returns the format in which the device keeps matrices of experts with these stored parts, as
    /// [`Sizing::stored_format`] does for other matrices.
    fn stored_expert_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        self.stored_format(parts)
    }

    /// Tells whether the device keeps rows of a matrix in this format beside rows in others.
    fn stacks(&self, _format: WeightFormat) -> bool {
        false
    }

    /// Returns the bytes of a matrix `[out, cols]`, padding included.
    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize;

    /// Returns the bytes of a matrix `[out, cols]` of each of `count` experts, padding included.
    fn experts_bytes(&self, count: usize, out: usize, cols: usize, format: WeightFormat) -> usize {
        count.saturating_mul(self.matrix_bytes(out, cols, format))
    }

    /// Returns the bytes of a matrix of `inputs` inputs and `outputs` outputs of each of `count`
    /// heads, padding included.
    fn head_matrices_bytes(&self, count: usize, inputs: usize, outputs: usize, dtype: DType) -> usize {
        count.saturating_mul(inputs).saturating_mul(outputs).saturating_mul(dtype.size())
    }

    /// Returns the bytes of the pool of adapters of one matrix, padding included.
    fn adapters_bytes(&self, spec: &AdapterSpec) -> usize {
        spec.bytes()
    }

    /// Returns the bytes of the working memory of experts.
    fn routing_bytes(&self, _spec: &RoutingSpec) -> usize {
        0
    }

    /// Returns the bytes of an embedding `[rows, cols]` that is not also the head; 0 if the device
    /// does not copy it.
    fn embedding_bytes(&self, rows: usize, cols: usize, dtype: DType) -> usize {
        self.matrix_bytes(rows, cols, dtype.into())
    }

    /// Returns the bytes of one layer's KV cache, padding included. They grow in proportion to the
    /// blocks.
    fn kv_bytes(&self, spec: &KvSpec) -> usize;

    /// Returns the bytes of one layer's recurrent states, padding included.
    fn states_bytes(&self, spec: &StateSpec) -> usize {
        spec.bytes()
    }

    /// Returns the bytes that the device keeps for itself to compute these products.
    fn scratch_bytes(&self, products: &[ProductShape]) -> usize;

    /// Returns the bytes of `elements` elements of activations.
    fn activation_bytes(&self, elements: usize) -> usize {
        elements.saturating_mul(size_of::<f32>())
    }

    /// Returns the bytes of the buffer in which `ranks` ranks gather their logits, `elements` of
    /// each; 0 if the device needs no such buffer.
    fn gather_bytes(&self, _ranks: usize, _elements: usize) -> usize {
        0
    }

    /// Returns the bytes of device memory that a step queue takes.
    fn step_bytes(&self, _size: &StepSize<'_>) -> usize {
        0
    }

    /// Returns the bytes that the device's driver and libraries take in a group of `ranks` ranks.
    fn overheads(&self, _ranks: usize) -> Overheads {
        Overheads::default()
    }
}
