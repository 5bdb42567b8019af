//! The specification of a decoder: everything that the decoder must know to compute a model.
//!
//! A family turns a `config.json` into a [`DecoderSpec`]. Nothing below this level knows a model by
//! name.

use std::ops::Range;

use millrace_kernels::{Activation, QkvLayout, RopeStyle};

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
    /// The norms of all layers and of the head.
    pub norm: NormPlan,
    /// The way in which attention and MLP are added to the residual stream.
    pub residual: Residual,
    /// Rotary tables. Layers refer to a table by its index, so that kinds of layers can differ.
    pub ropes: Vec<RopeTable>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Whether the head is the embedding.
    pub tied_head: bool,
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
    /// Whether query and key heads are normalized by their RMS before the rotation.
    pub head_norm: bool,
    /// The encoding of positions.
    pub positions: Positions,
    /// Factor on the dot products of queries and keys.
    pub score_scale: f32,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
}

impl Attention {
    /// Returns the heads.
    pub fn heads(&self) -> &AttentionHeads {
        match self {
            Attention::Full(heads) | Attention::Sliding { heads, .. } => heads,
        }
    }

    /// Returns the heads, to change them.
    pub fn heads_mut(&mut self) -> &mut AttentionHeads {
        match self {
            Attention::Full(heads) | Attention::Sliding { heads, .. } => heads,
        }
    }

    /// Returns the length of the window in tokens. Full attention has none.
    pub fn window(&self) -> Option<usize> {
        match self {
            Attention::Full(_) => None,
            Attention::Sliding { window, .. } => Some(*window),
        }
    }

    /// Limits the attention to the last `window` tokens.
    pub fn slide(&mut self, window: usize) {
        *self = Attention::Sliding { heads: self.heads().clone(), window };
    }
}

/// The encoding of positions in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// The layer does not encode positions.
    None,
    /// Query and key heads are rotated by their position.
    Rotary {
        /// Index into [`DecoderSpec::ropes`].
        table: usize,
    },
}

/// The kind of MLP of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(GatedMlp),
}

/// The specification of a gated MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedMlp {
    /// Number of features of gate and of up.
    pub width: usize,
    /// The activation function of the gate.
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
        NormPlan { kind: NormKind::Rms { eps }, place: NormPlace::BeforeBranches }
    }
}

/// The kind of norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NormKind {
    /// Features are divided by their root mean square and scaled.
    Rms {
        /// Added to the mean square.
        eps: f32,
    },
}

/// The place of the norms in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlace {
    /// Attention and MLP read the normalized residual stream (pre-norm).
    BeforeBranches,
}

/// The way in which attention and MLP are added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// First `x += attention(x)`, then `x += mlp(x)`.
    Sequential,
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
}
