//! Reads the specification of a decoder from a configuration. All families use this reader.

use millrace_backend::{Activation, QkvLayout, RopeStyle};

use super::config::Config;
use super::error::ConfigError;
use super::rope::{self, MAX_POSITIONS, Rotated};
use crate::description::{
    AlibiHeads, Attention, AttentionHeads, DecoderSpec, DenseMlp, HeadNormPlan, KeyChoice, LayerSpec, Mlp,
    NormKind, NormPlace, NormPlan, Positions, QueryScale, SlopeRule,
};

// Larger sizes are typing errors or attacks. No model comes near them, and the product of any two
// cannot overflow.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 10;
pub(super) const MAX_HEADS: usize = 1 << 14;
pub(super) const MAX_HEAD_DIM: usize = 1 << 12;
pub(super) const MAX_VOCAB: usize = 1 << 24;

/// The keys under which a family's configuration has the sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    pub(super) hidden: &'static str,
    pub(super) layers: &'static str,
    pub(super) heads: &'static str,
    pub(super) kv_heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) width: &'static str,
    pub(super) vocab: &'static str,
    pub(super) positions: &'static str,
    pub(super) norm_eps: &'static str,
}

/// The keys of most families in transformers.
pub(super) const USUAL_KEYS: Keys = Keys {
    hidden: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    width: "intermediate_size",
    vocab: "vocab_size",
    positions: "max_position_embeddings",
    norm_eps: "rms_norm_eps",
};

/// The properties of a family beyond its sizes. The default is a Llama.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traits {
    pub(super) keys: Keys,
    /// Number of layers, if it does not follow from the key.
    pub(super) layers: Option<usize>,
    /// Number of key/value heads if the key is absent. If this is `None`, or the key is `null`, it
    /// is the number of query heads.
    pub(super) kv_heads: Option<usize>,
    /// Number of features per head if the key is absent. If this is `None`, or the key is `null`,
    /// the width is divided among the heads.
    pub(super) head_dim: Option<usize>,
    /// Share of the features that is rotated if the key is absent.
    pub(super) partial_rotary: f64,
    pub(super) rope: RopeStyle,
    /// Base of the rotation if the key is absent.
    pub(super) theta: Option<f64>,
    /// Base of the rotation of layers with a window, if it may differ from that of the others. A
    /// second table is read then.
    pub(super) window_theta: Option<f64>,
    /// Longest context in tokens if the key is absent. If this is `None`, the key must be there.
    pub(super) positions: Option<usize>,
    /// Whether positions are rotary. If not, the family sets them.
    pub(super) rotary: bool,
    /// Whether the head is the embedding if the key is absent.
    pub(super) tied_head: bool,
    pub(super) norm: NormTrait,
    /// Epsilon of the norms if the key is absent. If this is `None`, the key must be there.
    pub(super) norm_eps: Option<f64>,
    /// The activation function if no key names one.
    pub(super) act: Activation,
    /// Whether the MLP has a gate.
    pub(super) gated: bool,
    /// Whether the width of the MLP is four times the hidden size if the key is absent.
    pub(super) fourfold_width: bool,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) head_norm: HeadNormPlan,
}

/// The kind of a family's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormTrait {
    Rms,
    /// The scales are stored minus 1.
    RmsPlusOne,
    Layer {
        bias: bool,
    },
}

impl NormTrait {
    fn kind(self, eps: f32) -> NormKind {
        match self {
            NormTrait::Rms => NormKind::Rms { eps, add_one: false },
            NormTrait::RmsPlusOne => NormKind::Rms { eps, add_one: true },
            NormTrait::Layer { bias } => NormKind::Layer { eps, bias },
        }
    }
}

impl Default for Traits {
    fn default() -> Self {
        Traits {
            keys: USUAL_KEYS,
            layers: None,
            kv_heads: None,
            head_dim: None,
            partial_rotary: 1.0,
            rope: RopeStyle::Half,
            theta: None,
            window_theta: None,
            positions: None,
            rotary: true,
            tied_head: false,
            norm: NormTrait::Rms,
            norm_eps: None,
            act: Activation::Silu,
            gated: true,
            fourfold_width: false,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            head_norm: HeadNormPlan::None,
        }
    }
}

/// Reads a decoder of equal layers without sliding windows.
pub(super) fn read(config: &Config, traits: &Traits) -> Result<DecoderSpec, ConfigError> {
    let keys = &traits.keys;
    config.insist("use_mrope", false, "positions in several dimensions")?;
    let hidden = config.size(keys.hidden, MAX_WIDTH)?;
    let layout = heads(config, traits, hidden)?;
    let positions = match (config.optional_size(keys.positions, MAX_POSITIONS)?, traits.positions) {
        (Some(positions), _) | (None, Some(positions)) => positions,
        (None, None) => return Err(config.missing(keys.positions)),
    };
    let (ropes, max_positions) = if traits.rotary {
        let partial = traits.partial_rotary;
        let style = rope_style(config, traits.rope)?;
        let theta = traits.theta.unwrap_or(rope::THETA);
        let rotated = Rotated { style, head_dim: layout.head_dim, partial, positions, theta };
        match traits.window_theta {
            None => {
                let (rope, max_positions) = rope::read(config, &rotated)?;
                (vec![rope], max_positions)
            }
            Some(theta) => rope::read_kinds(config, &rotated, &Rotated { theta, ..rotated })?,
        }
    } else {
        (Vec::new(), positions)
    };
    let heads = AttentionHeads {
        qkv_bias: traits.qkv_bias,
        head_norm: traits.head_norm,
        positions: if traits.rotary { Positions::Rotary { table: 0 } } else { Positions::None },
        out_bias: traits.out_bias,
        ..AttentionHeads::plain(layout)
    };
    let mlp = DenseMlp {
        width: match config.optional_size(keys.width, MAX_WIDTH)? {
            Some(width) => width,
            None if traits.fourfold_width => 4 * hidden,
            None => return Err(config.missing(keys.width)),
        },
        act: activation(config, traits.act)?,
        xielu: false,
        clamp: None,
        up_bias: traits.mlp_bias,
        down_bias: traits.mlp_bias,
        up_factor: 1.0,
        out_factor: 1.0,
    };
    let mlp = if traits.gated { Mlp::Gated(mlp) } else { Mlp::Plain(mlp) };
    let layer = LayerSpec { attention: Attention::Full(heads), mlp };
    let eps = match (config.optional_number(keys.norm_eps, 0.0)?, traits.norm_eps) {
        (Some(eps), _) | (None, Some(eps)) => eps,
        (None, None) => return Err(config.missing(keys.norm_eps)),
    };
    let vocab = config.size(keys.vocab, MAX_VOCAB)?;
    let layers = match traits.layers {
        Some(layers) => layers,
        None => config.size(keys.layers, MAX_LAYERS)?,
    };
    Ok(DecoderSpec {
        model_type: config.optional("model_type")?.unwrap_or_default(),
        max_positions,
        norm: NormPlan { kind: traits.norm.kind(eps as f32), place: NormPlace::BeforeBranches },
        ropes,
        tied_head: config.flag("tie_word_embeddings", traits.tied_head)?,
        ..DecoderSpec::plain(vocab, hidden, vec![layer; layers])
    })
}

/// Reads the activation function.
pub(super) fn activation(config: &Config, absent: Activation) -> Result<Activation, ConfigError> {
    let keys = ["hidden_activation", "hidden_act", "activation_function", "activation"];
    activation_of(config, &keys, absent)
}

/// Reads the activation function of the first of `keys` that is there.
pub(super) fn activation_of(
    config: &Config,
    keys: &[&'static str],
    absent: Activation,
) -> Result<Activation, ConfigError> {
    for &key in keys {
        let Some(name) = config.optional::<String>(key)? else { continue };
        return Ok(match name.as_str() {
            "silu" | "swish" => Activation::Silu,
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "relu2" => Activation::ReluSquared,
            _ => return Err(config.unsupported(key, "it must be silu, gelu, gelu_new, relu or relu2")),
        });
    }
    Ok(absent)
}

/// Returns the pairing of rotated features: that of the family, unless a converter has reordered
/// the rows of query and key. The readers of model files say so in an object of its own.
fn rope_style(config: &Config, usual: RopeStyle) -> Result<RopeStyle, ConfigError> {
    let interleaved = match config.object("millrace")? {
        Some(changes) => changes.optional("rope_interleaved")?,
        None => None,
    };
    Ok(match interleaved {
        Some(true) => RopeStyle::Interleaved,
        Some(false) => RopeStyle::Half,
        None => usual,
    })
}

fn heads(config: &Config, traits: &Traits, hidden: usize) -> Result<QkvLayout, ConfigError> {
    let keys = &traits.keys;
    let heads = config.size(keys.heads, MAX_HEADS)?;
    let absent = |key: &str, default: Option<usize>| default.filter(|_| !config.mentions(key));

    let kv_heads = config
        .optional_size(keys.kv_heads, MAX_HEADS)?
        .or(absent(keys.kv_heads, traits.kv_heads))
        .unwrap_or(heads);
    if heads % kv_heads != 0 {
        let reason = format!("is {kv_heads}, which does not divide {} = {heads}", keys.heads);
        return Err(config.invalid(keys.kv_heads, reason));
    }
    let head_dim =
        config.optional_size(keys.head_dim, MAX_HEAD_DIM)?.or(absent(keys.head_dim, traits.head_dim));
    let head_dim = match head_dim {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let reason = format!("is {heads}, which does not divide hidden_size = {hidden}");
            return Err(config.invalid(keys.heads, reason));
        }
    };
    if head_dim > MAX_HEAD_DIM || heads * head_dim > MAX_WIDTH {
        let reason = format!("is {heads}, too many for {head_dim} features each");
        return Err(config.invalid(keys.heads, reason));
    }
    Ok(QkvLayout { heads, kv_heads, head_dim })
}

/// Sets the sliding window of each layer.
///
/// `layer_types` decides which layers have the window `size`. If it is absent, the layers from
/// `first` on have it.
pub(super) fn slide(
    config: &Config,
    spec: &mut DecoderSpec,
    size: Option<usize>,
    first: usize,
) -> Result<(), ConfigError> {
    let key = "layer_types";
    let count = spec.layers.len();
    let Some(kinds) = config.optional::<Vec<String>>(key)? else {
        if let Some(window) = size {
            spec.layers.iter_mut().skip(first).for_each(|layer| layer.attention.slide(window));
        }
        return Ok(());
    };
    if kinds.len() != count {
        let reason = format!("has {} entries for {count} layers", kinds.len());
        return Err(config.invalid(key, reason));
    }
    for (layer, kind) in spec.layers.iter_mut().zip(&kinds) {
        match (kind.as_str(), size) {
            ("full_attention", _) => {}
            ("sliding_attention", Some(window)) => layer.attention.slide(window),
            ("sliding_attention", None) => {
                return Err(
                    config.invalid(key, "has sliding_attention, but no sliding_window is on".to_owned())
                );
            }
            (other, _) => return Err(config.invalid(key, format!("has {other}, which is not supported"))),
        }
    }
    Ok(())
}

/// Sets the sliding window of all layers but each `pattern`-th, unless `layer_types` decides.
pub(super) fn slide_by_pattern(
    config: &Config,
    spec: &mut DecoderSpec,
    size: Option<usize>,
    pattern: usize,
) -> Result<(), ConfigError> {
    if config.mentions("layer_types") {
        return slide(config, spec, size, 0);
    }
    let Some(window) = size else { return Ok(()) };
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if (index + 1) % pattern != 0 {
            layer.attention.slide(window);
        }
    }
    Ok(())
}

/// Sets the sliding window of the layers that `layer_types` names. If it is absent, no layer has
/// one.
pub(super) fn slide_if_listed(
    config: &Config,
    spec: &mut DecoderSpec,
    size: Option<usize>,
) -> Result<(), ConfigError> {
    let first = spec.layers.len();
    slide(config, spec, size, first)
}

/// Returns which of `count` layers are rotated: `no_rope_layers` has 1 for them, in spite of its
/// name. Without a list, each `no_rope_layer_interval`-th layer is not rotated.
pub(super) fn rotated_layers(config: &Config, count: usize) -> Result<Vec<bool>, ConfigError> {
    let key = "no_rope_layers";
    let interval = config.optional_size("no_rope_layer_interval", usize::MAX)?.unwrap_or(4);
    match config.optional::<Vec<u8>>(key)?.filter(|list| !list.is_empty()) {
        Some(list) if list.len() == count => Ok(list.iter().map(|&rotates| rotates != 0).collect()),
        Some(list) => Err(config.invalid(key, format!("has {} entries for {count} layers", list.len()))),
        None => Ok((1..=count).map(|layer| layer % interval != 0).collect()),
    }
}

/// Rotates layers with a window by the second table.
pub(super) fn rotate_windows(spec: &mut DecoderSpec) {
    for layer in spec.layers.iter_mut().filter(|layer| layer.attention.window().is_some()) {
        if let Some(heads) = layer.attention.heads_mut() {
            heads.positions = Positions::Rotary { table: 1 };
        }
    }
}

/// Removes the rotation of layers without a window.
pub(super) fn rotate_only_windows(spec: &mut DecoderSpec) {
    for layer in spec.layers.iter_mut().filter(|layer| layer.attention.window().is_none()) {
        if let Some(heads) = layer.attention.heads_mut() {
            heads.positions = Positions::None;
        }
    }
}

/// Replaces the positions of all layers by linear biases.
pub(super) fn use_linear_biases(spec: &mut DecoderSpec, rule: SlopeRule) {
    for heads in heads_mut(spec) {
        let all = heads.layout.heads;
        heads.positions = Positions::Linear(AlibiHeads { rule, all, first: 0 });
    }
}

/// Reads the bound on queries, keys and values of all layers.
pub(super) fn clip(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let bound = config.optional_number("clip_qkv", f64::MIN_POSITIVE)?.map(|bound| bound as f32);
    heads_mut(spec).for_each(|heads| heads.clip = bound);
    Ok(())
}

/// Multiplies the queries of all layers by these factors.
pub(super) fn scale_queries(spec: &mut DecoderSpec, scale: Option<QueryScale>) {
    spec.query_scale = scale;
    heads_mut(spec).for_each(|heads| heads.scales_queries = scale.is_some());
}

/// Bounds the context of a model that chooses `keys` keys for each query. Up to so many tokens it
/// attends to all keys, as the decoder always does.
pub(super) fn limit_to_choice(spec: &mut DecoderSpec, keys: usize) {
    if keys < spec.max_positions {
        spec.key_choice = Some(KeyChoice { keys, positions: spec.max_positions });
        spec.max_positions = keys;
    }
}

/// Returns the heads of all layers with softmax attention, to change them.
pub(super) fn heads_mut(spec: &mut DecoderSpec) -> impl Iterator<Item = &mut AttentionHeads> {
    spec.layers.iter_mut().filter_map(|layer| layer.attention.heads_mut())
}

/// Reads the window of `sliding_window`, or returns `absent` if the file does not contain the key.
pub(super) fn window(config: &Config, absent: usize) -> Result<Option<usize>, ConfigError> {
    let key = "sliding_window";
    if config.mentions(key) { config.optional_size(key, usize::MAX) } else { Ok(Some(absent)) }
}
