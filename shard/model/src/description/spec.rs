//! The specification of a decoder: everything that the decoder must know to compute a model.
//!
//! A family turns a `config.json` into a [`DecoderSpec`]. Nothing below this level knows a model by
//! name.

use std::ops::Range;

use millrace_backend::{
    Activation, AttentionSpec, KeyWindow, KvFormat, KvSpec, MlpKind, QkvLayout, RouterScores,
};

use super::alibi::AlibiHeads;
use super::distance::DistanceHeads;
use super::key_choice::KeyChoice;
use super::mlp::Mlp;
use super::prefix::PrefixRule;
use super::recurrent::RecurrentLayer;
use super::rope::{QueryScale, RopeTable};

/// The specification of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The `model_type` of the configuration, for messages.
    pub model_type: String,
    /// Number of tokens in the vocabulary. Token ids are below this.
    pub vocab: usize,
    /// The token ids whose rows of embedding and head this rank holds. An unsplit model holds all,
    /// and a rank that has layers only holds none. Ids from `vocab` on are padding.
    pub vocab_rows: Range<usize>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of positions that the model supports, after scaling.
    pub max_positions: usize,
    /// The change of the embedding before the first layer.
    pub embedding: EmbeddingPlan,
    /// Whether the decoder is a head that predicts the token after the next one (multi-token
    /// prediction; DeepSeek-AI, "DeepSeek-V3 Technical Report"). With h the last state of a model
    /// at a position after its final norm, and e the embedding of the next token, the first layer
    /// reads `token_projection · norm(e) + state_projection · norm(h)`. Embedding and head are
    /// those of the model.
    pub reads_states: bool,
    /// The norms of all layers and of the head.
    pub norm: NormPlan,
    /// The way in which attention and MLP are added to the residual stream.
    pub residual: Residual,
    /// Factor on the output of attention and of the MLP (Granite).
    pub branch_factor: f32,
    /// Whether the residual stream is multiplied by a number of the checkpoint after each layer
    /// (Gemma 4). Models with [`NormPlace::AfterSums`] have no such numbers.
    pub layer_scalars: bool,
    /// The embeddings that each layer has of its own. Models with [`NormPlace::AfterSums`] have no
    /// such embeddings.
    pub per_layer: Option<PerLayerEmbedding>,
    /// The keys that the model would choose in longer contexts, if it has such a choice.
    pub key_choice: Option<KeyChoice>,
    /// Rotary tables. Layers refer to a table by its index, so that kinds of layers can differ.
    pub ropes: Vec<RopeTable>,
    /// The factors on queries of the layers that have such factors.
    pub query_scale: Option<QueryScale>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// The tokens of a prompt that attend to each other, if attention is bidirectional in some
    /// layer.
    pub prefix: PrefixRule,
    /// Whether the head is the embedding.
    pub tied_head: bool,
    /// The logits.
    pub head: HeadPlan,
}

impl DecoderSpec {
    /// Returns a part of the model that only the CPU computes, if it has one.
    pub fn cpu_only_part(&self) -> Option<&'static str> {
        let scales_latents = |heads: &AttentionHeads| heads.latent.is_some() && heads.scales_queries;
        if self.layers.iter().filter_map(|layer| layer.attention.heads()).any(scales_latents) {
            return Some("factors on queries of latent attention");
        }
        let mut recurrent = self.layers.iter().filter_map(|layer| layer.attention.recurrent());
        if recurrent.any(RecurrentLayer::is_by_channel) {
            return Some("a decay of each feature of keys");
        }
        self.layers.iter().find_map(|layer| match (layer.attention.key_window(), &layer.mlp) {
            (Some(KeyWindow::Around(_)), _) => Some("attention windows in both directions"),
            _ if layer.attention.heads().is_some_and(AttentionHeads::has_distance_bias) => {
                Some("biases of scores by distance")
            }
            _ if layer.attention.heads().is_some_and(|heads| heads.clip.is_some()) => {
                Some("bounds on queries, keys and values")
            }
            (_, Mlp::Experts(experts)) if matches!(experts.kind, MlpKind::Plain(_)) => {
                Some("experts without gates")
            }
            (_, Mlp::Experts(experts))
                if matches!(experts.router.scores, RouterScores::SparseMixer { .. }) =>
            {
                Some("experts chosen by SparseMixer")
            }
            (_, Mlp::Gated(mlp) | Mlp::Plain(mlp)) if mlp.act == Activation::ReluSquared => {
                Some("MLPs with the square of ReLU")
            }
            (_, Mlp::Plain(mlp)) if mlp.xielu => Some("MLPs with xIELU"),
            _ => None,
        })
    }

    /// Returns what keeps the layers from being divided between devices, if there is something.
    pub fn indivisible_layers(&self) -> Option<&'static str> {
        let mut heads = self.layers.iter().filter_map(|layer| layer.attention.heads());
        if heads.any(|heads| heads.kv_source.is_some()) {
            return Some("layers that read the KV cache of others");
        }
        self.per_layer.map(|_| "embeddings for each layer")
    }

    /// Returns whether some layer has a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.attention.recurrent().is_some())
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
    /// Number of features of an embedding, if it is not the width of the residual stream
    /// (OPT-350M). A projection follows the embedding, and another one precedes the head, whose
    /// rows have this length too.
    pub width: Option<usize>,
    /// Whether the embedding is normalized (BLOOM).
    pub norm: bool,
    /// The table of learned positions, which is added to the embedding.
    pub positions: Option<LearnedPositions>,
    /// Number of rows of the table of token types, if the checkpoint has one (BERT). The row of the
    /// first type is added to every row of `positions` when that is loaded, or to every row of the
    /// embedding if there are no learned positions (Nomic's BERT). Tokens of the second type get
    /// the difference of the first two rows in addition. Further types are not used.
    pub token_types: Option<usize>,
}

impl EmbeddingPlan {
    /// Returns whether tokens may have a second type, as those of the second text of a pair do.
    pub fn has_second_type(&self) -> bool {
        self.token_types.is_some_and(|types| types > 1)
    }
}

impl Default for EmbeddingPlan {
    fn default() -> Self {
        EmbeddingPlan { factor: 1.0, width: None, norm: false, positions: None, token_types: None }
    }
}

/// Embeddings of tokens that each layer has of its own (Gemma 4 E2B and E4B).
///
/// With e the embedding of a token, the input of layer l is
/// `(norm(projection · e / √hidden) + √width table[token]) / √2` in its part l, where each part has
/// `width` features and is normalized by itself. The layer ends with
/// `x += norm(projection_l · (act(gate_l · x) * input))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerLayerEmbedding {
    /// Number of rows of the table, at least one for each token.
    pub rows: usize,
    /// Number of features of a token for each layer.
    pub width: usize,
    /// The activation function of the gates.
    pub act: Activation,
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
    /// The classifier of texts, if there is one.
    pub classifier: Option<ClassifierPlan>,
}

impl Default for HeadPlan {
    fn default() -> Self {
        HeadPlan {
            bias: false,
            factor: 1.0,
            soft_cap: None,
            unit_rows: false,
            is_absent: false,
            classifier: None,
        }
    }
}

/// The classifier of texts: a dense layer with an activation, and a projection, for one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassifierPlan {
    /// Number of outputs.
    pub classes: usize,
    /// The state, and what is computed of it.
    pub kind: ClassifierKind,
}

/// The state that a classifier of texts reads, and what its dense layer computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassifierKind {
    /// `tanh(dense(x))` of the first state of a text (RoBERTa).
    Tanh,
    /// `norm(gelu(dense(x)))`, where the norm is one of the model's kind (ModernBERT).
    NormedGelu {
        /// Whether x is the mean of all states of a text, and not the first one.
        averages: bool,
        /// Whether the dense layer has a bias.
        dense_bias: bool,
    },
}

impl ClassifierKind {
    /// Returns whether the classifier reads the mean of all states of a text.
    pub const fn averages(self) -> bool {
        matches!(self, ClassifierKind::NormedGelu { averages: true, .. })
    }

    /// Returns whether the dense layer has a bias.
    pub const fn has_dense_bias(self) -> bool {
        matches!(self, ClassifierKind::Tanh | ClassifierKind::NormedGelu { dense_bias: true, .. })
    }

    /// Returns whether the output of the dense layer is normalized.
    pub const fn is_normed(self) -> bool {
        matches!(self, ClassifierKind::NormedGelu { .. })
    }
}

/// The specification of one layer. A layer without attention or without an MLP has one branch and
/// one norm (Nemotron-H). It needs [`Residual::Sequential`] or [`Residual::Normalized`], and norms
/// that are not [`NormPlace::AfterSums`].
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// The attention.
    pub attention: Attention,
    /// The MLP.
    pub mlp: Mlp,
}

impl LayerSpec {
    /// Returns whether attention reads the residual stream as it is where other branches read it
    /// normalized.
    pub fn reads_residual(&self) -> bool {
        self.attention.heads().is_some_and(|heads| heads.reads_residual)
    }

    /// Returns the number of branches that are added to the residual stream.
    pub fn branches(&self) -> usize {
        usize::from(!self.attention.is_none()) + usize::from(!self.mlp.is_none())
    }
}

/// The kind of attention of a layer, or what the layer has instead.
#[derive(Debug, Clone, PartialEq)]
pub enum Attention {
    /// Each token attends to itself and to all tokens before it.
    Full(AttentionHeads),
    /// Each token attends to the last `window` tokens, itself included. With bidirectional heads it
    /// also attends to as many tokens from itself on, as far as they are in the prefix.
    Sliding {
        /// The heads.
        heads: AttentionHeads,
        /// Length of the window in tokens.
        window: usize,
    },
    /// Positions are divided into chunks, and each token attends to those tokens of its chunk that
    /// are not after it (Llama 4).
    Chunked {
        /// The heads.
        heads: AttentionHeads,
        /// Length of a chunk in tokens.
        size: usize,
    },
    /// A recurrence in place of attention.
    Recurrent(RecurrentLayer),
    /// Attention to all earlier tokens, without latents, and a recurrence that read the same
    /// states. Their results are added (Falcon-H1).
    Hybrid {
        /// The heads.
        heads: AttentionHeads,
        /// The recurrence.
        recurrent: RecurrentLayer,
    },
    /// Nothing: the layer is an MLP (Nemotron-H).
    None,
}

/// The heads of softmax attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionHeads {
    /// Numbers and sizes of the heads in the fused projection.
    pub layout: QkvLayout,
    /// Whether the fused projection has a bias.
    pub qkv_bias: bool,
    /// The norm of queries and keys.
    pub head_norm: HeadNormPlan,
    /// Whether each value head is normalized too, without a scale (Gemma 4). Latent attention has
    /// no such norm.
    pub value_norm: bool,
    /// Whether the checkpoint has no projection to values, because that to keys is used for both
    /// (Gemma 4). Norms and rotation then make keys and values differ.
    pub values_are_keys: bool,
    /// Bound on the absolute values of queries, keys and values, which are clamped after the norms
    /// and before the rotation (MPT, OLMoE). Latent attention and heads that are normalized after
    /// the rotation have no bound.
    pub clip: Option<f32>,
    /// The encoding of positions.
    pub positions: Positions,
    /// Factor on the dot products of queries and keys.
    pub score_scale: f32,
    /// Whether queries are multiplied by [`DecoderSpec::query_scale`].
    pub scales_queries: bool,
    /// Bound on the absolute values of scores (Gemma 2).
    pub score_cap: Option<f32>,
    /// Whether each query head has an attention sink, a score that takes part in the softmax and
    /// has no value (gpt-oss).
    pub sinks: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Factor on the output (Falcon-H1).
    pub out_factor: f32,
    /// Whether the results of all heads are multiplied by the sigmoid of a projection of the
    /// residual stream (Qwen3-Next). Latent attention has no such gates.
    pub out_gate: bool,
    /// The latents that keys and values are computed from, if they are (multi-head latent
    /// attention). `layout` then has one key head, whose features are the shared rotated ones, then
    /// those of the latent.
    pub latent: Option<LatentPlan>,
    /// Whether the heads read the residual stream as it is where other branches read it normalized:
    /// there is no norm before them (the first layer of ModernBERT). The model has
    /// [`Residual::Sequential`] then.
    pub reads_residual: bool,
    /// Whether the tokens in the prefix of a prompt also attend to those after them in it (see
    /// [`DecoderSpec::prefix`]). The prompt is then computed as a whole.
    pub bidirectional: bool,
    /// The earlier layer whose KV cache the layer reads, if it computes queries only (Gemma 4 E2B).
    /// Both layers have the same key heads. Latent attention, and attention beside a recurrence,
    /// have caches of their own.
    pub kv_source: Option<usize>,
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
    /// Returns the attention in the terms of the backend. `window` limits the keys.
    pub fn softmax_spec(&self, window: Option<KeyWindow>) -> AttentionSpec {
        let AttentionHeads { layout, score_scale: scale, score_cap: soft_cap, bidirectional, .. } = *self;
        AttentionSpec { layout, scale, window, soft_cap, bidirectional }
    }

    /// Returns the layout of the fused projection: the layer's heads, without key and value heads
    /// if it reads the cache of another layer.
    pub const fn projected(&self) -> QkvLayout {
        match self.kv_source {
            None => self.layout,
            Some(_) => QkvLayout { kv_heads: 0, ..self.layout },
        }
    }

    /// Returns the shape of the KV cache of a layer, or of the one that it reads.
    pub const fn kv_spec(&self, blocks: usize, block_size: usize, format: KvFormat) -> KvSpec {
        let QkvLayout { kv_heads: heads, head_dim, .. } = self.layout;
        // Latents are keys and values at once.
        let value_dim = if self.latent.is_some() { 0 } else { head_dim };
        KvSpec { blocks, block_size, heads, key_dim: head_dim, value_dim, format }
    }

    /// Returns whether scores have a bias by distance.
    pub const fn has_distance_bias(&self) -> bool {
        matches!(self.positions, Positions::Distance(_))
    }

    /// Returns the number of features that the output projection reads.
    pub fn result_cols(&self) -> usize {
        self.layout.heads * self.latent.map_or(self.layout.head_dim, |latent| latent.value_dim)
    }
}

/// The norm of queries and keys, which precedes the rotation unless the variant says otherwise. Its
/// kind is that of the model's norms, without a bias unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNormPlan {
    /// Queries and keys are not normalized.
    None,
    /// Each head is normalized, and all query heads and all key heads share a scale (Qwen3).
    Shared,
    /// The same with biases, which all query heads and all key heads share too (Phi). The norms of
    /// the model must be layer norms with biases.
    SharedWithBias,
    /// Each head is normalized, and has a scale of its own (Cohere).
    PerHead,
    /// The features of all query heads are normalized together, and so are those of all key heads
    /// (OLMo 2).
    AllHeads,
    /// Each head is normalized, without a scale (Llama 4).
    Unscaled,
    /// Each head is normalized after the rotation, and all query heads and all key heads share a
    /// scale (Hunyuan). The norms must be RMS norms, the rotation must not change the lengths of
    /// heads, and queries have no factors by position.
    SharedAfterRotation,
}

impl HeadNormPlan {
    /// Returns whether the scales are as long as one head.
    pub const fn has_scale_of_one_head(self) -> bool {
        matches!(
            self,
            HeadNormPlan::Shared | HeadNormPlan::SharedWithBias | HeadNormPlan::SharedAfterRotation
        )
    }

    /// Returns whether the scales are as long as all heads together.
    pub const fn has_scale_of_all_heads(self) -> bool {
        matches!(self, HeadNormPlan::PerHead | HeadNormPlan::AllHeads)
    }
}

impl Attention {
    /// Returns the heads of softmax attention, if the layer has such heads.
    pub fn heads(&self) -> Option<&AttentionHeads> {
        match self {
            Attention::Full(heads)
            | Attention::Sliding { heads, .. }
            | Attention::Chunked { heads, .. }
            | Attention::Hybrid { heads, .. } => Some(heads),
            Attention::Recurrent(_) | Attention::None => None,
        }
    }

    /// Returns the heads of softmax attention, if the layer has a KV cache of its own.
    pub fn cached_heads(&self) -> Option<&AttentionHeads> {
        self.heads().filter(|heads| heads.kv_source.is_none())
    }

    /// Returns the heads of softmax attention, to change them.
    pub fn heads_mut(&mut self) -> Option<&mut AttentionHeads> {
        match self {
            Attention::Full(heads)
            | Attention::Sliding { heads, .. }
            | Attention::Chunked { heads, .. }
            | Attention::Hybrid { heads, .. } => Some(heads),
            Attention::Recurrent(_) | Attention::None => None,
        }
    }

    /// Returns the recurrence that stands in place of attention or beside it, if there is one.
    pub fn recurrent(&self) -> Option<&RecurrentLayer> {
        match self {
            Attention::Recurrent(layer) | Attention::Hybrid { recurrent: layer, .. } => Some(layer),
            _ => None,
        }
    }

    /// Returns the recurrent layer, to change it.
    pub fn recurrent_mut(&mut self) -> Option<&mut RecurrentLayer> {
        match self {
            Attention::Recurrent(layer) | Attention::Hybrid { recurrent: layer, .. } => Some(layer),
            _ => None,
        }
    }

    /// Returns whether the layer has neither attention nor a recurrence.
    pub const fn is_none(&self) -> bool {
        matches!(self, Attention::None)
    }

    /// Returns the length of the window in tokens. Other attention has none.
    pub fn window(&self) -> Option<usize> {
        match self {
            Attention::Sliding { window, .. } => Some(*window),
            _ => None,
        }
    }

    /// Returns the limit on the keys that a token attends to, in the terms of the backend.
    pub fn key_window(&self) -> Option<KeyWindow> {
        match self {
            Attention::Sliding { heads, window } if heads.bidirectional => Some(KeyWindow::Around(*window)),
            Attention::Sliding { window, .. } => Some(KeyWindow::Last(*window)),
            Attention::Chunked { size, .. } => Some(KeyWindow::Chunk(*size)),
            _ => None,
        }
    }

    /// Limits softmax attention to the last `window` tokens. Other layers have no window.
    pub fn slide(&mut self, window: usize) {
        if let Some(heads) = self.own_heads().cloned() {
            *self = Attention::Sliding { heads, window };
        }
    }

    /// Removes the window. Other attention stays as it is.
    pub fn unslide(&mut self) {
        if let Attention::Sliding { heads, .. } = self {
            *self = Attention::Full(heads.clone());
        }
    }

    /// Limits softmax attention to chunks of `size` tokens. Other layers have no chunks.
    pub fn chunk(&mut self, size: usize) {
        if let Some(heads) = self.own_heads().cloned() {
            *self = Attention::Chunked { heads, size };
        }
    }

    /// Returns the heads of softmax attention without a recurrence beside it.
    fn own_heads(&self) -> Option<&AttentionHeads> {
        self.heads().filter(|_| self.recurrent().is_none())
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
    /// Scores have a bias that depends on the distance of query and key, for each head (MPNet).
    Distance(DistanceHeads),
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
        /// Whether a bias is added. Most norms of heads have none.
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Residual {
    /// First `x += attention(x)`, then `x += mlp(x)`.
    Sequential,
    /// `x += attention(x) + mlp(x)`: both read the same residual stream. The norms are those of
    /// [`NormPlace::BeforeBranches`].
    Parallel {
        /// Whether the MLP has a norm of its own (GPT-NeoX), or reads what attention reads (GPT-J).
        has_mlp_norm: bool,
    },
    /// First `x = factor * norm(x) + attention(norm(x))`, then the same with the MLP (ChatGLM-6B).
    /// The norms are those of [`NormPlace::BeforeBranches`].
    Normalized {
        /// Factor on the normalized residual stream.
        factor: f32,
    },
}
