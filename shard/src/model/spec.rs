//! The specification of a decoder: everything that the decoder must know to compute a model.
//!
//! A family turns a `config.json` into a [`DecoderSpec`]. Nothing below this level knows a model by
//! name.

use std::ops::Range;

use millrace_kernels::{Activation, Gating, KvFormat, KvSpec, QkvLayout, RopeStyle, RouterSpec};
use millrace_proto::PromptHandling;

use super::alibi::AlibiHeads;

/// The specification of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The `model_type` of the configuration, for messages.
    pub model_type: String,
    /// Number of tokens in the vocabulary. Token ids are below this.
    pub vocab: usize,
    /// The token ids whose rows of embedding and head this rank holds. An unsplit model holds all.
    /// Ids from `vocab` on are padding.
    pub vocab_rows: Range<usize>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of positions that the model supports, after scaling.
    pub max_positions: usize,
    /// The change of the embedding before the first layer.
    pub embedding: EmbeddingPlan,
    /// The norms of all layers and of the head.
    pub norm: NormPlan,
    /// The way in which attention and MLP are added to the residual stream.
    pub residual: Residual,
    /// Factor on the output of attention and of the MLP (Granite).
    pub branch_factor: f32,
    /// Rotary tables. Layers refer to a table by its index, so that kinds of layers can differ.
    pub ropes: Vec<RopeTable>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// The logits.
    pub head: HeadPlan,
}

impl DecoderSpec {
    /// Returns how the router may divide and share prompts.
    pub fn prompt_handling(&self) -> PromptHandling {
        if self.is_bidirectional() { PromptHandling::Whole } else { PromptHandling::Shared }
    }

    /// Returns whether tokens of a prompt attend to those after them, in some layer.
    pub fn is_bidirectional(&self) -> bool {
        self.layers.iter().filter_map(|layer| layer.attention.heads()).any(|heads| heads.bidirectional)
    }
}

/// The change of the embedding before the first layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingPlan {
    /// Factor on the embedding (Gemma, Granite). It is rounded to the type of the weights.
    pub factor: f32,
    /// Whether the embedding is normalized (BLOOM).
    pub norm: bool,
    /// The table of learned positions, which is added to the embedding.
    pub positions: Option<LearnedPositions>,
    /// Number of rows of the table of token types, if the checkpoint has one (BERT). All tokens are
    /// of type 0, whose row is added to every row of `positions` when that is loaded.
    pub token_types: Option<usize>,
}

impl Default for EmbeddingPlan {
    fn default() -> Self {
        EmbeddingPlan { factor: 1.0, norm: false, positions: None, token_types: None }
    }
}

/// A table of learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Number of rows that the checkpoint stores.
    pub rows: usize,
    /// Row of position 0 (OPT stores two rows before it).
    pub first: usize,
}

/// The computation of logits from normalized states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadPlan {
    /// Whether the head has a bias.
    pub bias: bool,
    /// Factor on the logits (Cohere, Granite).
    pub factor: f32,
    /// Bound on the absolute values of the logits (Gemma 2).
    pub soft_cap: Option<f32>,
    /// Whether each row of the head is divided by its length when it is loaded (Baichuan 2).
    pub unit_rows: bool,
    /// Whether the checkpoint has no head, so that it is good for vectors of texts only. The
    /// embedding stands in for the head.
    pub is_absent: bool,
}

impl Default for HeadPlan {
    fn default() -> Self {
        HeadPlan { bias: false, factor: 1.0, soft_cap: None, unit_rows: false, is_absent: false }
    }
}

/// The specification of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// The attention.
    pub attention: Attention,
    /// The MLP.
    pub mlp: Mlp,
}

/// The kind of attention of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Attention {
    /// Each token attends to itself and to all tokens before it.
    Full(AttentionHeads),
    /// Each token attends to the last `window` tokens, itself included.
    Sliding {
        /// The heads.
        heads: AttentionHeads,
        /// Length of the window in tokens.
        window: usize,
    },
}

/// The heads of softmax attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionHeads {
    /// Numbers and sizes of the heads in the fused projection.
    pub layout: QkvLayout,
    /// Whether the fused projection has a bias.
    pub qkv_bias: bool,
    /// The norm of queries and keys before the rotation.
    pub head_norm: HeadNormPlan,
    /// The encoding of positions.
    pub positions: Positions,
    /// Factor on the dot products of queries and keys.
    pub score_scale: f32,
    /// Bound on the absolute values of scores (Gemma 2).
    pub score_cap: Option<f32>,
    /// Whether each query head has an attention sink, a score that takes part in the softmax and
    /// has no value (gpt-oss).
    pub sinks: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// The latents that keys and values are computed from, if they are (multi-head latent
    /// attention). `layout` then has one key head, whose features are the shared rotated ones, then
    /// those of the latent.
    pub latent: Option<LatentPlan>,
    /// Whether the tokens of a prompt also attend to those after them (BERT). The prompt is then
    /// computed as a whole, and no token is generated.
    pub bidirectional: bool,
}

/// The projections of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2"). The decoder
/// computes the absorbed form: the cache holds one latent for each token, and each head's
/// projections from the latent are applied to queries and to results instead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentPlan {
    /// Number of features that queries are computed from. If absent, it is the residual stream.
    pub query_rank: Option<usize>,
    /// Number of features of each query head that are not rotated.
    pub plain_dim: usize,
    /// Number of rotated features of each query head and of the shared key.
    pub rotary_dim: usize,
    /// Number of features of a latent.
    pub rank: usize,
    /// Number of features of each value head.
    pub value_dim: usize,
    /// Added to the mean square in the norms of latents and of the features of queries.
    pub norm_eps: f32,
}

impl LatentPlan {
    /// Returns the features of a query head before its projection to those of the latent.
    pub const fn query_dim(&self) -> usize {
        self.plain_dim + self.rotary_dim
    }

    /// Returns the features of a cached row: the rotated key and the latent.
    pub const fn row_dim(&self) -> usize {
        self.rotary_dim + self.rank
    }
}

impl AttentionHeads {
    /// Returns the shape of the KV cache of a layer.
    pub const fn kv_spec(&self, blocks: usize, block_size: usize, format: KvFormat) -> KvSpec {
        let QkvLayout { kv_heads: heads, head_dim, .. } = self.layout;
        // Latents are keys and values at once.
        let value_dim = if self.latent.is_some() { 0 } else { head_dim };
        KvSpec { blocks, block_size, heads, key_dim: head_dim, value_dim, format }
    }

    /// Returns the number of features that the output projection reads.
    pub fn result_cols(&self) -> usize {
        self.layout.heads * self.latent.map_or(self.layout.head_dim, |latent| latent.value_dim)
    }
}

/// The norm of queries and keys before the rotation. Its kind is that of the model's norms, without
/// a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNormPlan {
    /// Queries and keys are not normalized.
    None,
    /// Each head is normalized, and all query heads and all key heads share a scale (Qwen3).
    Shared,
    /// Each head is normalized, and has a scale of its own (Cohere).
    PerHead,
    /// The features of all query heads are normalized together, and so are those of all key heads
    /// (OLMo 2).
    AllHeads,
}

impl HeadNormPlan {
    /// Returns whether the scales are as long as all heads together.
    pub const fn has_scale_of_all_heads(self) -> bool {
        matches!(self, HeadNormPlan::PerHead | HeadNormPlan::AllHeads)
    }
}

impl Attention {
    /// Returns the heads of softmax attention, if the layer has such heads.
    pub fn heads(&self) -> Option<&AttentionHeads> {
        match self {
            Attention::Full(heads) | Attention::Sliding { heads, .. } => Some(heads),
        }
    }

    /// Returns the heads of softmax attention, to change them.
    pub fn heads_mut(&mut self) -> Option<&mut AttentionHeads> {
        match self {
            Attention::Full(heads) | Attention::Sliding { heads, .. } => Some(heads),
        }
    }

    /// Returns the length of the window in tokens. Full attention has none.
    pub fn window(&self) -> Option<usize> {
        match self {
            Attention::Full(_) => None,
            Attention::Sliding { window, .. } => Some(*window),
        }
    }

    /// Limits softmax attention to the last `window` tokens. Other layers have no window.
    pub fn slide(&mut self, window: usize) {
        if let Some(heads) = self.heads().cloned() {
            *self = Attention::Sliding { heads, window };
        }
    }
}

/// The encoding of positions in a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Positions {
    /// The layer does not encode positions.
    None,
    /// Query and key heads are rotated by their position.
    Rotary {
        /// Index into [`DecoderSpec::ropes`].
        table: usize,
    },
    /// Scores fall with the distance of query and key, at a slope for each head (Press et al.,
    /// "Train Short, Test Long: Attention with Linear Biases").
    Linear(AlibiHeads),
}

/// The kind of MLP of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(DenseMlp),
    /// `down(activation(up(x)))`.
    Plain(DenseMlp),
    /// The weighted sum of some of many gated MLPs, chosen for each token by a router.
    Experts(ExpertsSpec),
}

impl Mlp {
    /// Returns the sizes of an MLP that every token passes through. A mixture of experts has none.
    pub fn dense(&self) -> Option<&DenseMlp> {
        match self {
            Mlp::Gated(mlp) | Mlp::Plain(mlp) => Some(mlp),
            Mlp::Experts(_) => None,
        }
    }

    /// Returns the sizes of an MLP that every token passes through, to change them.
    pub fn dense_mut(&mut self) -> Option<&mut DenseMlp> {
        match self {
            Mlp::Gated(mlp) | Mlp::Plain(mlp) => Some(mlp),
            Mlp::Experts(_) => None,
        }
    }

    /// Returns the mixture of experts, if the MLP is one.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            Mlp::Gated(_) | Mlp::Plain(_) => None,
            Mlp::Experts(experts) => Some(experts),
        }
    }

    /// Returns whether the MLP is one that every token passes through, with a gate.
    pub fn is_gated(&self) -> bool {
        matches!(self, Mlp::Gated(_))
    }

    /// Returns whether the MLP is one that every token passes through, without a gate.
    pub fn is_plain(&self) -> bool {
        matches!(self, Mlp::Plain(_))
    }
}

/// The specification of a mixture of experts. Experts are gated MLPs.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// The choice of experts.
    pub router: RouterSpec,
    /// Whether the router's logits have a bias (gpt-oss).
    pub router_bias: bool,
    /// Whether a bias is added to the router's scores for the choice.
    pub choice_bias: bool,
    /// Number of features of gate and of up of each expert.
    pub width: usize,
    /// The gates of all experts, the shared one included.
    pub gating: Gating,
    /// Whether gate and up of each expert have biases. The shared expert has none.
    pub up_bias: bool,
    /// Whether down of each expert has a bias. The shared expert has none.
    pub down_bias: bool,
    /// The expert that every token passes through.
    pub shared: Option<SharedExpert>,
}

impl ExpertsSpec {
    /// Returns the number of experts, without the shared one.
    pub fn count(&self) -> usize {
        self.router.experts
    }
}

/// The specification of an expert that every token passes through, a gated MLP beside the chosen
/// ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Number of features of gate and of up.
    pub width: usize,
    /// Whether the result is multiplied by the sigmoid of a product of the token's state (Qwen2
    /// MoE).
    pub gated: bool,
}

/// The specification of an MLP, with or without a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseMlp {
    /// Number of features of up, and of the gate.
    pub width: usize,
    /// The activation function.
    pub act: Activation,
    /// Whether gate and up have biases.
    pub up_bias: bool,
    /// Whether down has a bias.
    pub down_bias: bool,
}

/// The norms of a model: their kind and their place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormPlan {
    /// The kind of norm.
    pub kind: NormKind,
    /// The place of the norms in a layer.
    pub place: NormPlace,
}

impl NormPlan {
    /// Returns the plan of Llama: RMS norms with this epsilon before attention, before the MLP and
    /// before the head.
    pub const fn rms_before_branches(eps: f32) -> Self {
        NormPlan { kind: NormKind::Rms { eps, add_one: false }, place: NormPlace::BeforeBranches }
    }

    /// Returns whether the norms have biases.
    pub const fn has_bias(&self) -> bool {
        matches!(self.kind, NormKind::Layer { bias: true, .. })
    }
}

/// The kind of norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NormKind {
    /// Features are divided by their root mean square and scaled.
    Rms {
        /// Added to the mean square.
        eps: f32,
        /// Whether the scales are stored minus 1 (Gemma).
        add_one: bool,
    },
    /// The mean of the features is subtracted, and they are divided by their standard deviation and
    /// scaled.
    Layer {
        /// Added to the variance.
        eps: f32,
        /// Whether a bias is added. Norms of heads have none.
        bias: bool,
    },
}

/// The place of the norms in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlace {
    /// Attention and MLP read the normalized residual stream (pre-norm).
    BeforeBranches,
    /// Attention and MLP read the residual stream as it is, and their outputs are normalized
    /// (OLMo 2).
    AfterBranches,
    /// Both (Gemma 2, GLM-4-0414).
    AroundBranches,
    /// Attention and MLP read the residual stream as it is, and the residual stream is normalized
    /// after each of them has been added (BERT). There is no norm before the head.
    AfterSums,
}

impl NormPlace {
    /// Returns whether the residual stream itself is normalized.
    pub const fn is_of_sums(self) -> bool {
        matches!(self, NormPlace::AfterSums)
    }

    /// Returns whether attention and MLP read the normalized residual stream.
    pub const fn is_before(self) -> bool {
        matches!(self, NormPlace::BeforeBranches | NormPlace::AroundBranches)
    }

    /// Returns whether the outputs of attention and MLP are normalized.
    pub const fn is_after(self) -> bool {
        matches!(self, NormPlace::AfterBranches | NormPlace::AroundBranches)
    }
}

/// The way in which attention and MLP are added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// First `x += attention(x)`, then `x += mlp(x)`.
    Sequential,
    /// `x += attention(x) + mlp(x)`: both read the same residual stream. The norms are those of
    /// [`NormPlace::BeforeBranches`].
    Parallel {
        /// Whether the MLP has a norm of its own (GPT-NeoX), or reads what attention reads (GPT-J).
        has_mlp_norm: bool,
    },
}

/// The parameters of a rotary table.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// The pairing of features.
    pub style: RopeStyle,
    /// Number of features that are rotated in each head. The number is even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// The change of the frequencies for long contexts.
    pub scaling: RopeScaling,
    /// The factors on queries, beside the rotation. Latent attention has none.
    pub query_scale: Option<QueryScale>,
}

/// Factors on queries that grow with their position, so that attention stays sharp in long contexts
/// (Nakanishi, "Scalable-Softmax Is Superior for Attention"). The factor at position p is
/// `1 + beta * ln(1 + floor(p / interval))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// Growth with the logarithm of the position.
    pub beta: f64,
    /// Number of positions with the same factor.
    pub interval: f64,
}

/// A change of the rotary frequencies for contexts longer than those of the pre-training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// The frequencies are not changed.
    Default,
    /// All frequencies are divided by a factor (position interpolation).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the length of the sequence beyond `original` (NTK-aware). The token at
    /// position p is rotated as in a sequence of length `max(p + 1, original)`, so that its key
    /// does not depend on the cut of a prompt.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// Length in tokens beyond which the base grows.
        original: usize,
    },
    /// Llama 3: low frequencies are divided, high ones are kept, and those between are blended.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Frequencies whose wavelength is over `original / low` are divided.
        low: f64,
        /// Frequencies whose wavelength is under `original / high` are kept.
        high: f64,
        /// Length of the sequences of the pre-training, in tokens.
        original: f64,
    },
    /// LongRoPE (Ding et al.): the frequency of each pair is divided by a factor of its own. Which
    /// list of factors is used depends on the positions that the table is made for, not on the
    /// length of a sequence, so that all keys of a sequence are rotated alike.
    LongRope {
        /// The divisors if the table has at most `original` positions, one for each pair.
        short: Vec<f64>,
        /// The divisors of longer tables.
        long: Vec<f64>,
        /// Length of the sequences of the pre-training, in tokens.
        original: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// YaRN (Peng et al.): a ramp over the dimensions leads from kept to divided frequencies.
    Yarn {
        /// Divisor of the frequencies.
        factor: f64,
        /// Length of the sequences of the pre-training, in tokens.
        original: f64,
        /// Number of rotations within `original` tokens at which the ramp begins.
        beta_fast: f64,
        /// Number of rotations within `original` tokens at which the ramp ends.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded to whole dimensions.
        truncate: bool,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// Each frequency is divided by its own number, as a GGUF file stores them.
    Divided {
        /// The divisors, one for each pair of features.
        divisors: Vec<f64>,
    },
}
