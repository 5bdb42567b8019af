//! The operations of a forward pass.

use crate::Result;
use crate::activation::{Activation, Gating, MlpKind};
use crate::adapters::AdapterOps;
use crate::recurrent::{ChannelRecurrence, Convolution, GateFunction, Recurrence, StateCopy};
use crate::step::OpenStep;
use crate::types::DeviceTypes;

/// The statistic that a norm divides features by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// The root of the mean square (Zhang and Sennrich, "Root Mean Square Layer Normalization").
    Rms,
    /// The standard deviation, after the mean is subtracted (Ba et al., "Layer Normalization").
    Layer,
}

/// A normalization. Statistics and products are computed in f32.
#[derive(Debug)]
pub struct Norm<V> {
    /// The statistic.
    pub kind: NormKind,
    /// Scale per feature, `[cols]`.
    pub weight: V,
    /// Shift per feature, `[cols]`. Only a norm of [`NormKind::Layer`] has one.
    pub bias: Option<V>,
    /// Epsilon that is added under the root.
    pub eps: f32,
}

impl<V> Norm<V> {
    /// Creates a norm by the root of the mean square.
    pub const fn rms(weight: V, eps: f32) -> Self {
        Norm { kind: NormKind::Rms, weight, bias: None, eps }
    }
}

/// Parts of each row of a buffer that follow each other and have the same length, such as heads.
///
/// The weights of their norm are `[cols]` if the parts share them, and `[count * cols]` if each
/// part has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowParts {
    /// Column of the first part.
    pub first: usize,
    /// Number of parts.
    pub count: usize,
    /// Columns of each part.
    pub cols: usize,
}

/// RMS normalization of each query and key head before the rotation (Qwen3). Weights are
/// `[head_dim]`.
#[derive(Debug)]
pub struct HeadNorm<V> {
    /// Normalization of the query heads.
    pub q: Norm<V>,
    /// Normalization of the key heads.
    pub k: Norm<V>,
}

/// The pairing of a head's features for the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Feature `i` with `i + rotary_dim / 2` (GPT-NeoX, Llama in Hugging Face layout).
    Half,
    /// Feature `2i` with `2i + 1` (GPT-J, ChatGLM).
    Interleaved,
}

/// Rotary position embedding over the first features of each query and key head. The others pass
/// through.
#[derive(Debug)]
pub struct RopeSpec<V> {
    /// Pairing of features.
    pub style: RopeStyle,
    /// Number of features that are rotated by the angles of one position.
    pub rotary_dim: usize,
    /// Whether there are two axes: the first `rotary_dim` features are rotated by the position on
    /// the first axis, and as many after them by that on the second one, as
    /// [`SequencePrefix::axes`](super::SequencePrefix::axes) says (ChatGLM-6B). Latent attention
    /// has one axis.
    pub two_axes: bool,
    /// Cosines by position, `[positions, rotary_dim / 2]`, scaled by the attention factor.
    pub cos: V,
    /// Sines by position, in the same shape and scale.
    pub sin: V,
}

/// The layout of one row of the fused projection: query heads, then key heads, then value heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkvLayout {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
}

impl<V> RopeSpec<V> {
    /// Returns the number of features that are rotated.
    pub const fn rotated(&self) -> usize {
        if self.two_axes { 2 * self.rotary_dim } else { self.rotary_dim }
    }
}

impl QkvLayout {
    /// Returns the columns of the fused projection.
    pub const fn cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// The work between the fused projection and the attention of one layer.
#[derive(Debug)]
pub struct Prologue<'a, V> {
    /// Layout of the projection. Without key heads, the rows are queries only, and nothing is
    /// stored: the layer reads the cache of another one (Gemma 4).
    pub layout: QkvLayout,
    /// Normalization of heads, before the rotation.
    pub head_norm: Option<&'a HeadNorm<V>>,
    /// Rotation, if positions are rotary in this layer.
    pub rope: Option<&'a RopeSpec<V>>,
    /// Factors on all features of query heads by the position in the sequence, `[positions]`, after
    /// the rotation (Llama 4, Ministral 3).
    pub query_scale: Option<&'a V>,
}

/// The work before attention over latents.
#[derive(Debug)]
pub struct LatentPrologue<'a, V> {
    /// The rotation.
    pub rope: &'a RopeSpec<V>,
    /// Factors on all features of query heads by the position in the sequence, `[positions]`, after
    /// the rotation (Mistral 4). GPUs have no kernel for them.
    pub query_scale: Option<&'a V>,
}

/// A limit on the keys that a query attends to, among those that it sees without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyWindow {
    /// The last ones: a query at position i sees keys j with `i - window < j <= i`. At least 1.
    Last(usize),
    /// Those of its chunk: positions are divided into chunks of this length, at least 1 (Llama 4).
    Chunk(usize),
    /// The nearest ones in both directions: a query at position i sees keys j with `i - distance <
    /// j < i + distance`. At least 1 (EmbeddingGemma, ModernBERT). GPUs have no such windows.
    Around(usize),
}

impl KeyWindow {
    /// Returns the first key that a query at `position` sees.
    pub const fn first(self, position: usize) -> usize {
        match self {
            KeyWindow::Last(window) | KeyWindow::Around(window) => (position + 1).saturating_sub(window),
            KeyWindow::Chunk(size) => position / size * size,
        }
    }

    /// Returns the end of the keys that a query at `position` sees, if it sees those before `end`
    /// without a window.
    pub const fn end(self, position: usize, end: usize) -> usize {
        match self {
            KeyWindow::Around(distance) if position.saturating_add(distance) < end => position + distance,
            KeyWindow::Last(_) | KeyWindow::Chunk(_) | KeyWindow::Around(_) => end,
        }
    }

    /// Returns the length: the most keys that a query sees.
    pub const fn len(self) -> usize {
        match self {
            KeyWindow::Last(len) | KeyWindow::Chunk(len) => len,
            KeyWindow::Around(distance) => distance.saturating_mul(2).saturating_sub(1),
        }
    }

    /// Returns whether queries see no keys, which no device computes.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The keys that a query attends to, and the scale of the scores.
///
/// The score of a query at position i for the key at position j is `cap(scale * q·k)`, to which
/// [`ScoreTerms`] may add.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSpec {
    /// Heads of the queries and of the cache.
    pub layout: QkvLayout,
    /// Factor on the dot products.
    pub scale: f32,
    /// The limit on keys. With `None` a query at position i sees all `j <= i`.
    pub window: Option<KeyWindow>,
    /// Bound on the absolute values of scores: `cap(x) = soft_cap * tanh(x / soft_cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// Whether a query in its sequence's prefix sees all keys of the prefix, and not only those
    /// before it. The window, if there is one, is [`KeyWindow::Around`] then.
    pub bidirectional: bool,
}

/// The attention of query heads over latents: cached rows that are the keys of all heads, and whose
/// last features are the values of all heads (multi-head latent attention in its absorbed form,
/// DeepSeek-AI, "DeepSeek-V2").
#[derive(Debug, Clone, Copy)]
pub struct LatentSpec {
    /// Query heads.
    pub heads: usize,
    /// Features of a query head and of a cached row.
    pub key_dim: usize,
    /// Number of last features of a cached row that are its value.
    pub value_dim: usize,
    /// Factor on the dot products.
    pub scale: f32,
}

impl LatentSpec {
    /// Returns the attention without its values: all query heads share one key head, and nothing
    /// but the scale changes scores.
    pub const fn attention(&self) -> AttentionSpec {
        let layout = QkvLayout { heads: self.heads, kv_heads: 1, head_dim: self.key_dim };
        AttentionSpec { layout, scale: self.scale, window: None, soft_cap: None, bidirectional: false }
    }
}

/// Biases of scores by the distance of query and key (Raffel et al., "Exploring the Limits of
/// Transfer Learning with a Unified Text-to-Text Transformer").
#[derive(Debug)]
pub struct DistanceBias<'a, V> {
    /// `[heads, 2 * reach + 1]`: the number at `j - i + reach` of a head's row is for a query at
    /// position i and a key at position j.
    pub table: &'a V,
    /// The distance beyond which all keys have the same bias.
    pub reach: usize,
}

impl<V> DistanceBias<'_, V> {
    /// Returns the place in the table of the bias of a head, for a query and a key at these
    /// positions.
    pub fn place(&self, head: usize, query: usize, key: usize) -> usize {
        let in_row = (key + self.reach).saturating_sub(query).min(2 * self.reach);
        head * (2 * self.reach + 1) + in_row
    }
}

impl<V> Clone for DistanceBias<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for DistanceBias<'_, V> {}

/// Numbers per query head that change the scores or the softmax of attention.
#[derive(Debug)]
pub struct ScoreTerms<'a, V> {
    /// Slopes, `[heads]`: `slope * (j - i)` is added to the score (Press et al., "Train Short, Test
    /// Long: Attention with Linear Biases").
    pub alibi: Option<&'a V>,
    /// Biases by distance, which are added to the score. GPUs have none.
    pub distance: Option<DistanceBias<'a, V>>,
    /// Attention sinks, `[heads]`: the denominator of the softmax has `exp(sink)` more (Xiao et
    /// al., "Efficient Streaming Language Models with Attention Sinks").
    pub sinks: Option<&'a V>,
}

impl<V> ScoreTerms<'_, V> {
    /// No slopes, no biases and no sinks.
    pub const NONE: Self = ScoreTerms { alibi: None, distance: None, sinks: None };
}

impl<V> Clone for ScoreTerms<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for ScoreTerms<'_, V> {}

/// Numbers per expert that change the choice of a router or its weights.
#[derive(Debug)]
pub struct RouterTerms<'a, V> {
    /// Added to the scores for the choice only, `[experts]` (DeepSeek-V3).
    pub bias: Option<&'a V>,
    /// Factors on the weights of the chosen experts, after all else, `[experts]` (Gemma 4).
    pub scales: Option<&'a V>,
}

impl<V> Clone for RouterTerms<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for RouterTerms<'_, V> {}

/// The MLPs of all experts of a layer.
#[derive(Debug)]
pub struct ExpertMlp<'a, E, V> {
    /// The fused projections to gate and up, `[2 * width, hidden]` of each expert, or without gates
    /// those to up, `[width, hidden]`.
    pub gate_up: &'a E,
    /// The biases of gate and up, `[experts, 2 * width]`, or without gates `[experts, width]`.
    pub gate_up_bias: Option<&'a V>,
    /// The down projections, `[hidden, width]` of each expert.
    pub down: &'a E,
    /// The biases of the down projections, `[experts, hidden]`. A token's weights apply to them as
    /// well.
    pub down_bias: Option<&'a V>,
    /// The gates, or the activation function. GPUs compute experts with gates.
    pub kind: MlpKind,
}

/// The operations of a forward pass: here the ones that all layers share.
///
/// `n` is the number of tokens of the step, and activations are row-major `[n, cols]`. Operations
/// may run asynchronously on the device, in the order in which they are called;
/// [`TransferOps::read`] waits for them. All fail with [`Error::Device`](crate::Error::Device) if
/// the device has failed.
///
/// Callers keep to the shapes given at allocation; a violation is a bug and may panic.
pub trait ForwardOps: AttentionOps + RecurrentOps + ExpertOps + AdapterOps + TransferOps {
    /// `out[t] = factor * embedding[token[t] - first]`, `[n, cols]`. A token whose row is not in
    /// the embedding gets zeros.
    fn embed(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        embedding: &Self::Matrix,
        first: usize,
        factor: f32,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// `out[t] = table[position[t]]`, `[n, cols]`, for a table of learned positions.
    fn embed_positions(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        table: &Self::Matrix,
        out: &mut Self::Buf,
    ) -> Result<()>;

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

    /// Normalizes parts of the first `n` rows of `x` in place, each by itself. See [`RowParts`].
    fn norm_parts(
        &self,
        n: usize,
        x: &mut Self::Buf,
        parts: RowParts,
        norm: &Norm<Self::Vector>,
    ) -> Result<()>;

    /// `out += x` over the first `n` rows.
    fn add(&self, n: usize, x: &Self::Buf, out: &mut Self::Buf) -> Result<()>;

    /// `x *= factor` over the first `n` rows.
    fn scale(&self, n: usize, factor: f32, x: &mut Self::Buf) -> Result<()>;

    /// `x = cap * tanh(x / cap)` over the first `n` rows.
    fn soft_cap(&self, n: usize, cap: f32, x: &mut Self::Buf) -> Result<()>;

    /// `x = min(max(x, -bound), bound)` over the first `n` rows.
    fn clamp(&self, n: usize, bound: f32, x: &mut Self::Buf) -> Result<()>;

    /// `out = x · wᵀ + bias` over the first `n` rows.
    fn linear(
        &self,
        n: usize,
        x: &Self::Buf,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// `x[t, f] *= function(gate[t, first + f])` over the first `n` rows. `gates` are the buffer
    /// with the gates, and the column of the first one.
    fn multiply_gates(
        &self,
        n: usize,
        gates: (&Self::Buf, usize),
        function: GateFunction,
        x: &mut Self::Buf,
    ) -> Result<()>;

    /// `out[t, f] = gating(x[t, f], x[t, cols + f])` for `x` of `[n, 2 * cols]`: gate features
    /// first, then up features.
    fn gate(&self, n: usize, gating: Gating, x: &Self::Buf, out: &mut Self::Buf) -> Result<()>;

    /// `x = act(x)` over the first `n` rows.
    fn activate(&self, n: usize, act: Activation, x: &mut Self::Buf) -> Result<()>;

    /// Copies the rows of `x` that [`StepInput::outputs`](super::StepInput::outputs) names to the
    /// front of `out`.
    fn gather(&self, step: &OpenStep<'_, Self::Queue>, x: &Self::Buf, out: &mut Self::Buf) -> Result<()>;

    /// Copies rows `[from, from + n)` of `x` to rows `[to, to + n)` of `out`.
    fn copy_rows(&self, x: &Self::Buf, from: usize, n: usize, out: &mut Self::Buf, to: usize) -> Result<()>;
}

/// The operations of attention, over a paged cache of keys and values or of latents.
///
/// As for [`ForwardOps`], `n` is the number of tokens of the step, and all operations fail with
/// [`Error::Device`](crate::Error::Device) if the device has failed.
pub trait AttentionOps: DeviceTypes {
    /// Normalizes and rotates the query and key heads of `qkv`, and stores the keys and values of
    /// all tokens of the step in the cache. The queries stay in `qkv`. Without key heads, the cache
    /// stays as it is.
    fn prologue(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        qkv: &mut Self::Buf,
        prologue: &Prologue<'_, Self::Vector>,
        kv: &mut Self::Kv,
    ) -> Result<()>;

    /// Attention of every token of the step over the cached keys of its sequence, for prefill and
    /// decode rows alike. Reads the queries from `qkv` as the prologue left them: the first
    /// features of each row, which keys and values may follow. `out` is `[n, heads * head_dim]`.
    fn attention(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        qkv: &Self::Buf,
        kv: &Self::Kv,
        spec: &AttentionSpec,
        terms: ScoreTerms<'_, Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// `out[t, h] = [x[t, h, inputs..] | w[h] · x[t, h, ..inputs]]` over the first `n` rows, for
    /// `x` of `[n, heads, inputs + carried]` and `out` of `[n, heads, carried + outputs]`: the
    /// first features of each head are multiplied by the head's matrix, and the others come before
    /// the result as they are. The number of carried features follows from the columns of `x`.
    fn linear_heads(
        &self,
        n: usize,
        x: &Self::Buf,
        w: &Self::HeadMatrices,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// Rotates the heads of `queries`, `[n, heads * key_dim]`, and the rows of `latents`, `[n,
    /// key_dim]`, and stores the rows in the cache. The queries stay in place; `latents` may be
    /// overwritten.
    fn latent_prologue(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        queries: &mut Self::Buf,
        latents: &mut Self::Buf,
        prologue: &LatentPrologue<'_, Self::Vector>,
        kv: &mut Self::Kv,
    ) -> Result<()>;

    /// Attention of every token of the step over the cached latents of its sequence. Reads
    /// `queries` as the prologue left them; `out` is `[n, heads * value_dim]`.
    fn latent_attention(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        queries: &Self::Buf,
        kv: &Self::Kv,
        spec: &LatentSpec,
        out: &mut Self::Buf,
    ) -> Result<()>;
}

/// The operations of recurrent layers, which update the states of the step's sequences. They fail
/// with [`Error::Device`](crate::Error::Device) if the device has failed.
pub trait RecurrentOps: DeviceTypes {
    /// Convolves the tokens of the step with those before them in their sequences, and remembers
    /// the last inputs of each sequence in its state. `out` is `[n, channels]`.
    fn convolve(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        x: &Self::Buf,
        convolution: &Convolution<'_, Self::Vector>,
        states: &mut Self::States,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// Applies a recurrence to the tokens of the step, one after the other in each sequence, and
    /// updates the states of the sequences. `inputs` are the queries, keys and values, `[n,
    /// heads.cols()]`, and the rates that the rule reads; `out` is `[n, heads * value_dim]`.
    fn recur(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        inputs: (&Self::Buf, &Self::Buf),
        recurrence: &Recurrence<'_, Self::Vector>,
        states: &mut Self::States,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// Applies a recurrence with a decay of each feature to the tokens of the step, as
    /// [`RecurrentOps::recur`] does with one decay of each head.
    fn recur_by_channel(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        recurrence: &ChannelRecurrence<'_, Self::Vector, Self::Buf>,
        states: &mut Self::States,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// Copies states from place to place, one copy after the other.
    fn copy_states(&self, copies: &[StateCopy], states: &mut Self::States) -> Result<()>;
}

/// The operations of a mixture of experts. They fail with
/// [`Error::Device`](crate::Error::Device) if the device has failed.
pub trait ExpertOps: DeviceTypes {
    /// Chooses the experts of the step's `n` tokens by the router's logits, `[n, experts]`, as the
    /// specification says that `routing` was allocated for.
    fn route(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        n: usize,
        logits: &Self::Buf,
        terms: RouterTerms<'_, Self::Vector>,
        routing: &mut Self::Routing,
    ) -> Result<()>;

    /// `out[t] = Σ weight[t, e] * down[e](gating(gate[e](x[t]), up[e](x[t])))` over the experts e
    /// that the last [`ExpertOps::route`] chose for each of the same `n` tokens. `x` and `out` are
    /// `[n, hidden]`. If the router weighs inputs, `weight[t, e] * x[t]` takes the place of `x[t]`,
    /// and results have no weights. The order of the sum depends on the chosen experts only.
    fn expert_mlp(
        &self,
        n: usize,
        x: &Self::Buf,
        mlp: &ExpertMlp<'_, Self::Experts, Self::Vector>,
        routing: &mut Self::Routing,
        out: &mut Self::Buf,
    ) -> Result<()>;

    /// `out[t] += sigmoid(gate[t]) * x[t]` over the first `n` rows, for `gate` of `[n, 1]`.
    fn add_gated(
        &self,
        n: usize,
        x: &Self::Buf,
        gate: &Self::Buf,
        routing: &mut Self::Routing,
        out: &mut Self::Buf,
    ) -> Result<()>;
}

/// Copies of activations between device and host. They fail with
/// [`Error::Device`](crate::Error::Device) if the device has failed.
pub trait TransferOps: DeviceTypes {
    /// Waits for the device and returns the first `n` rows of `buf` as f32.
    fn read(&self, buf: &Self::Buf, n: usize) -> Result<Vec<f32>>;

    /// Waits for the device and copies the first `n` rows of `buf` to `to`, `[n, cols]`, as f32.
    /// `scratch` holds the rows in the type of the device on their way. Its contents are lost, and
    /// it is kept for its allocation.
    fn download(&self, buf: &Self::Buf, n: usize, scratch: &mut Vec<u8>, to: &mut [f32]) -> Result<()>;

    /// Replaces the first `n` rows of `buf` by `from`, `[n, cols]`, rounded to the type of the
    /// device. `scratch` is as for [`TransferOps::download`].
    fn upload(&self, n: usize, from: &[f32], scratch: &mut Vec<u8>, buf: &mut Self::Buf) -> Result<()>;
}
