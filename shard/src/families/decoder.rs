//! From the keys of a configuration to the switches of the decoder: what all families share.

use millrace_kernels::{Activation, QkvLayout, RopeStyle};

use super::config::{Config, ConfigError};
use super::rope::{self, MAX_POSITIONS, Rotated};
use crate::model::{DecoderSpec, LayerSpec, MlpSpec};

// Larger sizes are typing errors or attacks: no model comes near, and products of any two stay far from overflow.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 10;
const MAX_HEADS: usize = 1 << 14;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_VOCAB: usize = 1 << 24;

/// What a family calls the sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    pub(super) layers: &'static str,
    pub(super) heads: &'static str,
    pub(super) kv_heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) width: &'static str,
    pub(super) vocab: &'static str,
    pub(super) positions: &'static str,
    pub(super) norm_eps: &'static str,
}

/// The names that transformers settled on.
pub(super) const USUAL_KEYS: Keys = Keys {
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    width: "intermediate_size",
    vocab: "vocab_size",
    positions: "max_position_embeddings",
    norm_eps: "rms_norm_eps",
};

/// What a family is beyond its sizes; the default is a Llama.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traits {
    pub(super) keys: Keys,
    /// Key/value heads when the key is absent; without this, and for `null`, as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// Features per head when the key is absent; without this, and for `null`, the width shared among the heads.
    pub(super) head_dim: Option<usize>,
    /// Share of the features that is rotated when the key is absent.
    pub(super) partial_rotary: f64,
    pub(super) rope: RopeStyle,
    /// The head is the embedding when the key is absent.
    pub(super) tied_head: bool,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) head_norm: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Traits {
            keys: USUAL_KEYS,
            kv_heads: None,
            head_dim: None,
            partial_rotary: 1.0,
            rope: RopeStyle::Half,
            tied_head: false,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            head_norm: false,
        }
    }
}

/// A decoder of equal layers, without sliding windows.
pub(super) fn read(config: &Config, traits: &Traits) -> Result<DecoderSpec, ConfigError> {
    let keys = &traits.keys;
    config.refuse("quantization_config", "quantised checkpoints cannot be read yet; use the original one")?;
    for key in ["hidden_act", "hidden_activation"] {
        if !matches!(config.optional::<String>(key)?.as_deref(), None | Some("silu" | "swish")) {
            return Err(config.unsupported(key, "the only activation is silu"));
        }
    }
    config.insist("use_mrope", false, "positions in several dimensions")?;

    let hidden = config.size("hidden_size", MAX_WIDTH)?;
    let qkv = heads(config, traits, hidden)?;
    let rotated = Rotated {
        style: traits.rope,
        head_dim: qkv.head_dim,
        partial: traits.partial_rotary,
        positions: config.size(keys.positions, MAX_POSITIONS)?,
    };
    let (rope, max_positions) = rope::read(config, &rotated)?;
    let layer = LayerSpec {
        qkv,
        qkv_bias: traits.qkv_bias,
        head_norm: traits.head_norm,
        rope: Some(0),
        score_scale: 1.0 / (qkv.head_dim as f32).sqrt(),
        window: None,
        out_bias: traits.out_bias,
        mlp: MlpSpec {
            width: config.size(keys.width, MAX_WIDTH)?,
            act: Activation::Silu,
            up_bias: traits.mlp_bias,
            down_bias: traits.mlp_bias,
        },
    };
    let vocab = config.size(keys.vocab, MAX_VOCAB)?;
    Ok(DecoderSpec {
        model_type: config.optional("model_type")?.unwrap_or_default(),
        vocab,
        vocab_rows: 0..vocab,
        hidden,
        max_positions,
        norm_eps: config.number(keys.norm_eps, 0.0)? as f32,
        ropes: vec![rope],
        layers: vec![layer; config.size(keys.layers, MAX_LAYERS)?],
        tied_head: config.flag("tie_word_embeddings", traits.tied_head)?,
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

/// Gives each layer its sliding window.
///
/// `layer_types` decides where it is present; else the layers from `first` on have the window `size`.
pub(super) fn slide(
    config: &Config,
    spec: &mut DecoderSpec,
    size: Option<usize>,
    first: usize,
) -> Result<(), ConfigError> {
    let key = "layer_types";
    let count = spec.layers.len();
    let Some(kinds) = config.optional::<Vec<String>>(key)? else {
        spec.layers.iter_mut().skip(first).for_each(|layer| layer.window = size);
        return Ok(());
    };
    if kinds.len() != count {
        let reason = format!("has {} entries for {count} layers", kinds.len());
        return Err(config.invalid(key, reason));
    }
    for (layer, kind) in spec.layers.iter_mut().zip(&kinds) {
        layer.window = match kind.as_str() {
            "full_attention" => None,
            "sliding_attention" if size.is_some() => size,
            "sliding_attention" => {
                return Err(
                    config.invalid(key, "has sliding_attention, but no sliding_window is on".to_owned())
                );
            }
            other => return Err(config.invalid(key, format!("has {other}, which is not supported"))),
        };
    }
    Ok(())
}

/// The window of `sliding_window`, or `absent` when the file does not mention it.
pub(super) fn window(config: &Config, absent: usize) -> Result<Option<usize>, ConfigError> {
    let key = "sliding_window";
    if config.mentions(key) { config.optional_size(key, usize::MAX) } else { Ok(Some(absent)) }
}
