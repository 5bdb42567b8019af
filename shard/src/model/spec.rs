//! The switches of the one decoder, and the places its weights go to.
//!
//! A family turns a `config.json` into a [`DecoderSpec`] and names the stored tensors that fill each [`Slot`]. Nothing
//! below this line knows a model by name.

use std::ops::Range;

use millrace_kernels::{Activation, Part, QkvLayout, RopeStyle};

/// Everything the decoder must know to compute a model.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The `model_type` of the configuration, for people.
    pub model_type: String,
    /// Token ids are below this.
    pub vocab: usize,
    /// The ids whose rows of embedding and head this rank holds: all, unless the model is split. Those from `vocab` on
    /// are padding.
    pub vocab_rows: Range<usize>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Positions that the model was made for (after scaling).
    pub max_positions: usize,
    /// Epsilon of all RMS norms.
    pub norm_eps: f32,
    /// Rotary tables; layers name one by index, so that kinds of layers can differ.
    pub ropes: Vec<RopeTable>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// The head is the embedding.
    pub tied_head: bool,
}

/// One layer: pre-norm attention, then a pre-norm gated MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Heads of the fused projection.
    pub qkv: QkvLayout,
    /// The projection has a bias.
    pub qkv_bias: bool,
    /// Query and key heads are RMS-normalised before the rotation.
    pub head_norm: bool,
    /// Index into [`DecoderSpec::ropes`].
    pub rope: Option<usize>,
    /// Factor on the dot products of queries and keys.
    pub score_scale: f32,
    /// Sliding window in tokens.
    pub window: Option<usize>,
    /// The attention's output projection has a bias.
    pub out_bias: bool,
    /// The MLP.
    pub mlp: MlpSpec,
}

/// `down(act(gate(x)) * up(x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Features of gate and of up.
    pub width: usize,
    /// The non-linearity on the gate.
    pub act: Activation,
    /// Gate and up have biases.
    pub up_bias: bool,
    /// Down has a bias.
    pub down_bias: bool,
}

/// What a rotary table is computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Pairing of features.
    pub style: RopeStyle,
    /// Features rotated per head; even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// How frequencies are changed for long contexts.
    pub scaling: RopeScaling,
}

/// Changes to the rotary frequencies for contexts longer than those of the pre-training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies divided by a factor (position interpolation).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// A base that grows with the length once it passes `original` (NTK-aware). The token at position p is rotated as in a
    /// sequence of length `max(p + 1, original)`, so that its key never depends on how a prompt was cut.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// Length from which the base grows.
        original: usize,
    },
    /// Llama 3: low frequencies divided, high ones kept, those between blended.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths over `original / low` are divided.
        low: f64,
        /// Wavelengths under `original / high` are kept.
        high: f64,
        /// Length of the pre-training.
        original: f64,
    },
    /// YaRN (Peng et al.): a ramp over dimensions between kept and divided frequencies.
    Yarn {
        /// Divisor.
        factor: f64,
        /// Length of the pre-training.
        original: f64,
        /// Rotations at which the ramp begins.
        beta_fast: f64,
        /// Rotations at which the ramp ends.
        beta_slow: f64,
        /// Round the ramp's ends to whole dimensions.
        truncate: bool,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
}

/// A place for one weight of the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// `[vocab_rows, hidden]`.
    Embedding,
    /// `[hidden]`, before the head.
    FinalNorm,
    /// `[vocab_rows, hidden]`; not asked for when the head is tied.
    Head,
    /// A weight of the layer with this index.
    Layer(usize, LayerSlot),
}

/// A place for one weight of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerSlot {
    /// `[hidden]`, before attention.
    AttentionNorm,
    /// `[(heads + 2 kv_heads) * head_dim, hidden]`: query rows, key rows, value rows.
    Qkv,
    /// `[(heads + 2 kv_heads) * head_dim]`.
    QkvBias,
    /// `[head_dim]`.
    QNorm,
    /// `[head_dim]`.
    KNorm,
    /// `[hidden, heads * head_dim]`.
    Out,
    /// `[hidden]`.
    OutBias,
    /// `[hidden]`, before the MLP.
    MlpNorm,
    /// `[2 * width, hidden]`: gate rows, then up rows.
    GateUp,
    /// `[2 * width]`.
    GateUpBias,
    /// `[hidden, width]`.
    Down,
    /// `[hidden]`.
    DownBias,
}

/// Where weights come from: a checkpoint, or a generator of dummy ones.
pub trait WeightSource {
    /// The parts of the weight for `slot`, to be stacked; their shapes have been checked against the specification.
    fn parts(&self, slot: Slot) -> Result<Vec<Part<'_>>, crate::Error>;

    /// This part will be read at once; whoever can fetch it ahead does so.
    fn will_need(&self, _part: &Part<'_>) {}

    /// The files that the weights come from, as one text with their sizes and times; empty if they come from no files.
    fn identity(&self) -> String {
        String::new()
    }

    /// Checks that what has been read so far is what the files held when they were opened.
    ///
    /// # Errors
    /// If a file was changed or could not be read meanwhile.
    fn verify(&self) -> Result<(), crate::Error> {
        Ok(())
    }
}
