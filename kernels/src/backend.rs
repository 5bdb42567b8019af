//! The operations that a device offers to a decoder.
//!
//! Shapes: `n` tokens of a step come first; activations are row-major `[n, cols]`. Everything a step needs is allocated
//! before the first one. Operations may run asynchronously on the device; [`Backend::collect`], [`Backend::score`] and
//! [`Backend::read`] wait for what they return.
//!
//! **Determinism.** The value of an output row depends only on that row's inputs: not on the other rows of the step, not on
//! how many there are, not on how a prompt was cut into chunks, and not on the number of threads.
//!
//! **Running ahead.** A device may keep the tokens of all sequences itself ([`Backend::admit`]), append what it samples, and so be asked for a
//! step whose inputs the host does not know yet: [`Backend::steps_ahead`] says how many steps may be under way at once.

use crate::sampling::{SampleRow, Sampled, SamplingParams, ScoreRow, Scored};
use crate::{DType, Error, Part, Result};

/// How a vector is normalised. Statistics and products are in f32.
#[derive(Debug)]
pub struct Norm<V> {
    /// Scale per feature, `[cols]`.
    pub weight: V,
    /// Added under the root.
    pub eps: f32,
}

/// RMS normalisation of each query and key head before the rotation (Qwen3); weights are `[head_dim]`.
#[derive(Debug)]
pub struct HeadNorm<V> {
    /// For the query heads.
    pub q: Norm<V>,
    /// For the key heads.
    pub k: Norm<V>,
}

/// Which features of a head form the pairs that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Feature `i` with `i + rotary_dim / 2` (GPT-NeoX, Llama in Hugging Face layout).
    Half,
    /// Feature `2i` with `2i + 1` (GPT-J, ChatGLM).
    Interleaved,
}

/// Rotary position embedding over the first `rotary_dim` features of each query and key head.
#[derive(Debug)]
pub struct RopeSpec<V> {
    /// Pairing of features.
    pub style: RopeStyle,
    /// Features rotated; the rest pass through.
    pub rotary_dim: usize,
    /// Cosines by position, `[positions, rotary_dim / 2]`, scaled by the attention factor.
    pub cos: V,
    /// Sines likewise.
    pub sin: V,
}

/// What one row of the fused projection holds: query heads, then key heads, then value heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkvLayout {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
}

impl QkvLayout {
    /// Columns of the fused projection.
    pub const fn cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Size of one layer's paged KV cache.
#[derive(Debug, Clone, Copy)]
pub struct KvSpec {
    /// Blocks in the pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Element type of the cache.
    pub dtype: DType,
}

/// What happens between the projection and the attention of one layer.
#[derive(Debug)]
pub struct Prologue<'a, V> {
    /// Shape of the projection.
    pub layout: QkvLayout,
    /// Normalisation of heads, before the rotation.
    pub head_norm: Option<&'a HeadNorm<V>>,
    /// Rotation, if positions are rotary in this layer.
    pub rope: Option<&'a RopeSpec<V>>,
}

/// Which keys a query attends to, and how scores become weights.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSpec {
    /// Shape of the projection the queries are read from.
    pub layout: QkvLayout,
    /// Factor on the dot products.
    pub scale: f32,
    /// A query at position i sees keys j with `i - window < j <= i`; `None` sees all `j <= i`.
    pub window: Option<usize>,
}

/// Elementwise non-linearities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
}

/// One sequence's share of a step: positions `[start, start + count)`, in consecutive tokens of the step.
#[derive(Debug, Clone, Copy)]
pub struct SeqRow<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Position of the first token.
    pub start: usize,
    /// Number of tokens; at least 1.
    pub count: usize,
    /// Whether the row is one token that was sampled, and the next is sampled after it. Such rows come first in a step, and a device may have
    /// an attention of their own for them.
    pub decodes: bool,
    /// Blocks that hold positions `[0, start + count)`, in order. Block b of a table holds positions
    /// `[b * block_size, (b + 1) * block_size)`.
    pub blocks: &'a [u32],
}

/// The geometry of a step.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    /// Token ids, `[n]`, row after row. A device that keeps tokens itself does not look at them: they may be unknown yet.
    pub tokens: &'a [u32],
    /// The sequences, in the order of their tokens.
    pub rows: &'a [SeqRow<'a>],
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub outputs: &'a [u32],
    /// How a token is chosen after each of `outputs`, which are then the last tokens of rows; or empty if none is.
    pub samples: &'a [SampleRow<'a>],
}

/// The largest steps that room is made for.
#[derive(Debug, Clone, Copy)]
pub struct StepSize<'a> {
    /// Tokens of all sequences together.
    pub tokens: usize,
    /// Sequences, in a step and at all.
    pub rows: usize,
    /// Tokens of the longest sequence.
    pub sequence_tokens: usize,
    /// Blocks of the caches that the steps use.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Element type of the caches.
    pub kv_dtype: DType,
    /// Logits of a row that is sampled from.
    pub vocab: usize,
    /// The kinds of attention that are asked for.
    pub attention: &'a [AttentionSpec],
}

impl StepSize<'_> {
    /// Blocks of the longest block table.
    pub fn table_blocks(&self) -> usize {
        self.sequence_tokens.div_ceil(self.block_size)
    }
}

/// How a device keeps the numbers of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatrixFormat {
    /// As numbers of this type.
    Dense(DType),
    /// As FP8 (e4m3), with a factor for each row (output): see [`crate::fp8`].
    Fp8,
}

impl MatrixFormat {
    /// The type of numbers that are kept as they are.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that only other devices multiply by.
    pub fn dense(self) -> Result<DType> {
        match self {
            MatrixFormat::Dense(dtype) => Ok(dtype),
            MatrixFormat::Fp8 => Err(Error::Unsupported("weights as FP8 need a card".to_owned())),
        }
    }

    /// Bytes of a matrix `[out, cols]` where nothing is padded.
    pub const fn bytes(self, out: usize, cols: usize) -> usize {
        match self {
            MatrixFormat::Dense(dtype) => out * cols * dtype.size(),
            MatrixFormat::Fp8 => out * (cols + size_of::<f32>()),
        }
    }
}

impl From<DType> for MatrixFormat {
    fn from(dtype: DType) -> Self {
        MatrixFormat::Dense(dtype)
    }
}

/// A product that steps will ask for: a weight's shape, and what is made with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductShape {
    /// Columns of the weight.
    pub inputs: usize,
    /// Rows of the weight.
    pub outputs: usize,
    /// How the weight is kept.
    pub format: MatrixFormat,
    /// Whether the results are logits.
    pub logits: bool,
    /// The most rows that are multiplied at once.
    pub rows: usize,
}

/// Bytes of a device's memory that its driver and libraries take for themselves once it is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overheads {
    /// What products need beside their operands.
    pub products: usize,
    /// What the exchange between ranks needs.
    pub collectives: usize,
    /// Kernels and recorded work.
    pub runtime: usize,
}

/// A device: memory, weights in its own layout, and the operations of a decoder.
///
/// Callers keep to the shapes given at allocation and to validated token, block and slot numbers; a violation is a bug
/// and may panic.
pub trait Backend {
    /// Activations, `[max_rows, cols]`.
    type Buf;
    /// Constants: norm weights, biases, rotary tables.
    type Vector;
    /// A weight matrix `[out, in]` in the layout this device multiplies fastest.
    type Matrix;
    /// The paged KV cache of one layer.
    type Kv;
    /// What the kernels read of the current step, and what came of those that are under way.
    type Step;
    /// Work that was written down to be done again at once.
    type Graph;

    /// A name for people, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    // ---- before the first step

    /// Finds out how these products are fastest, where there is a choice. Returns what a person should know of it.
    fn tune(&self, _products: &[ProductShape]) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    /// Takes `bytes` bytes of the device's memory at once, for everything that is made from now on in up to `pieces` pieces. Devices that gain
    /// nothing by it do nothing.
    fn reserve(&self, _bytes: usize, _pieces: usize) -> Result<()> {
        Ok(())
    }
    /// Says that everything has been made: steps allocate nothing on the device. Returns how many bytes did not fit what was reserved.
    fn seal(&self) -> usize {
        0
    }
    /// What the device's own software takes of its memory in a group of `ranks`.
    fn overheads(&self, _ranks: usize) -> Overheads {
        Overheads::default()
    }
    /// Bytes that [`Backend::buf`] takes for `elements` elements.
    fn activation_bytes(&self, elements: usize) -> usize {
        elements.saturating_mul(size_of::<f32>())
    }
    /// Bytes of what `ranks` ranks gather their logits in, `elements` of each, if the device needs room for that.
    fn gather_bytes(&self, _ranks: usize, _elements: usize) -> usize {
        0
    }
    /// Zeroed activations for up to `rows` rows.
    fn buf(&self, rows: usize, cols: usize) -> Result<Self::Buf>;
    /// Zeroed logits for up to `rows` rows: what [`Backend::linear`] writes for [`Backend::sample`] to choose from.
    fn logits(&self, rows: usize, cols: usize) -> Result<Self::Buf> {
        self.buf(rows, cols)
    }
    /// A vector of all parts' elements, one part after the other in row-major order.
    fn vector(&self, parts: &[Part<'_>]) -> Result<Self::Vector>;
    /// A matrix of the parts' rows stacked; all parts have the same number of columns. What is not dense can be multiplied by and nothing
    /// else, in products that [`Backend::tune`] has heard of. [`Error::Unsupported`] for a format that the device has no products for, or
    /// numbers that it cannot hold.
    fn matrix(&self, parts: &[Part<'_>], format: MatrixFormat) -> Result<Self::Matrix>;
    /// Bytes that [`Backend::matrix`] takes for `[out, in]`, padding included.
    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize;
    /// Bytes that [`Backend::kv`] takes, padding included; they grow in proportion to the blocks.
    fn kv_bytes(&self, spec: &KvSpec) -> usize;
    /// Bytes that the device keeps for itself so that [`Backend::linear`] can compute these products.
    fn scratch_bytes(&self, products: &[ProductShape]) -> usize;
    /// Bytes of the device's memory that [`Backend::step`] takes.
    fn step_bytes(&self, _size: &StepSize<'_>) -> usize {
        0
    }
    /// A zeroed cache.
    fn kv(&self, spec: KvSpec) -> Result<Self::Kv>;
    /// Room for steps up to this size.
    fn step(&self, size: &StepSize<'_>) -> Result<Self::Step>;

    /// Free bytes of the device's memory, if it says.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    // ---- one step

    /// How many steps may be asked for before the first of them is collected.
    fn steps_ahead(&self) -> usize {
        1
    }
    /// A sequence takes `slot` from the next step on: its tokens so far, and how its next ones are chosen.
    fn admit(
        &self,
        _step: &mut Self::Step,
        _slot: usize,
        _tokens: &[u32],
        _params: &SamplingParams,
    ) -> Result<()> {
        Ok(())
    }
    /// Hands the geometry of the next step to the device.
    fn begin(&self, step: &mut Self::Step, input: &StepInput<'_>) -> Result<()>;
    /// Makes what the other operations read of the step: the first thing that is asked of the device itself.
    fn prepare(&self, _step: &mut Self::Step) -> Result<()> {
        Ok(())
    }
    /// `out[t] = table[token[t] - first]`, `[n, cols]`; zeros for a token whose row the table does not hold.
    fn embed(&self, step: &Self::Step, table: &Self::Matrix, first: usize, out: &mut Self::Buf)
    -> Result<()>;
    /// `out = norm(x)` over the first `n` rows.
    fn norm(&self, n: usize, x: &Self::Buf, norm: &Norm<Self::Vector>, out: &mut Self::Buf) -> Result<()>;
    /// `residual += branch; out = norm(residual)` over the first `n` rows.
    fn add_norm(
        &self,
        n: usize,
        residual: &mut Self::Buf,
        branch: &Self::Buf,
        norm: &Norm<Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<()>;
    /// `out = x · wᵀ + bias` over the first `n` rows.
    fn linear(
        &self,
        n: usize,
        x: &Self::Buf,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<()>;
    /// Normalises and rotates query and key heads of `qkv` in place (queries) and stores keys and values of all tokens of the
    /// step in the cache.
    fn prologue(
        &self,
        step: &Self::Step,
        qkv: &mut Self::Buf,
        prologue: &Prologue<'_, Self::Vector>,
        kv: &mut Self::Kv,
    ) -> Result<()>;
    /// Attention of every token of the step over its sequence's cached keys, prefill chunks and decode rows alike;
    /// `out` is `[n, heads * head_dim]`. Queries are read from `qkv` as the prologue left them.
    fn attention(
        &self,
        step: &Self::Step,
        qkv: &Self::Buf,
        kv: &Self::Kv,
        spec: &AttentionSpec,
        out: &mut Self::Buf,
    ) -> Result<()>;
    /// `out[t, f] = act(x[t, f]) * x[t, cols + f]` for `x` of `[n, 2 * cols]`: gate features first, then up.
    fn gate(&self, n: usize, act: Activation, x: &Self::Buf, out: &mut Self::Buf) -> Result<()>;
    /// Copies the rows named by [`StepInput::outputs`] to the front of `out`.
    fn gather(&self, step: &Self::Step, x: &Self::Buf, out: &mut Self::Buf) -> Result<()>;
    /// Copies rows `[from, from + n)` of `x` to rows `[to, to + n)` of `out`.
    fn copy_rows(&self, x: &Self::Buf, from: usize, n: usize, out: &mut Self::Buf, to: usize) -> Result<()>;
    /// Chooses one token for each of the first `rows.len()` rows of `logits`, whose contents are lost; `rows` are the [`StepInput::samples`] that
    /// the step began with. A row without any finite logit yields the first token that it allows, with a NaN log-probability.
    fn sample(&self, step: &mut Self::Step, logits: &mut Self::Buf, rows: &[SampleRow<'_>]) -> Result<()>;
    /// The tokens that were chosen are those of their sequences from now on.
    fn append(&self, _step: &mut Self::Step) -> Result<()> {
        Ok(())
    }
    /// All of the step has been asked for: what it has chosen can be collected.
    fn finish(&self, _step: &mut Self::Step) -> Result<()> {
        Ok(())
    }
    /// Whether the oldest step that was finished and not collected has been computed.
    fn is_done(&self, _step: &Self::Step) -> Result<bool> {
        Ok(true)
    }
    /// Waits for that step and appends what it chose to `chosen`.
    fn collect(&self, step: &mut Self::Step, chosen: &mut Vec<Sampled>) -> Result<()>;
    /// Makes the operations of a step that began work on `rows` rows, each of one token that is sampled after, to no effect for those that the step
    /// does not have. Answers whether it can: only if all rows of the step decode, and not where there are no graphs.
    fn pad(&self, _step: &mut Self::Step, _rows: usize) -> bool {
        false
    }
    /// Writes down what `work` asks of the device, from [`Backend::prepare`] to [`Backend::append`], instead of doing it. It has been done
    /// before, in the same sizes. `None` where there are no graphs.
    fn record<E: From<Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Self::Graph>, E>;
    /// Asks for what was written down.
    fn replay(&self, graph: &Self::Graph) -> Result<()>;
    /// Judges one token by each of the first `rows.len()` rows of `logits`, whose contents are lost, with the memory of `step`. Appends to `scored`.
    fn score(
        &self,
        step: &mut Self::Step,
        logits: &mut Self::Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()>;
    /// The first `n` rows.
    fn read(&self, buf: &Self::Buf, n: usize) -> Result<Vec<f32>>;
}

/// A device whose activations lie in the host's memory, where the processes of a group can exchange them.
pub trait HostMemory: Backend {
    /// The first `n` rows.
    fn host<'a>(&self, buf: &'a Self::Buf, n: usize) -> &'a [f32];
    /// The first `n` rows, to be changed.
    fn host_mut<'a>(&self, buf: &'a mut Self::Buf, n: usize) -> &'a mut [f32];
    /// What the step has chosen so far.
    fn chosen<'a>(&self, step: &'a mut Self::Step) -> &'a mut Vec<Sampled>;
}
