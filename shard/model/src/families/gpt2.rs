//! GPT-2: learned positions, layer norms, and matrices that are stored transposed.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, LearnedPositions, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "gpt2",
    architectures: &["GPT2LMHeadModel"],
    spec,
    names: Names { layers: "transformer.h.", tensors, transposed: true, ..LLAMA },
};

pub(super) const KEYS: Keys = Keys {
    hidden: "n_embd",
    layers: "n_layer",
    heads: "n_head",
    kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    width: "n_inner",
    vocab: "vocab_size",
    positions: "n_positions",
    norm_eps: "layer_norm_epsilon",
};

/// The names of GPT-2, which StarCoder uses as well.
pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Positions, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("transformer.wte", &[Vocabulary])],
        WeightSlot::Positions => &[("transformer.wpe", &[Positions])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("transformer.ln_f", &[Hidden])],
        WeightSlot::Layer(_, Slot::AttentionNorm | Slot::AttentionNormBias) => &[("ln_1", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => &[("attn.c_attn", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attn.c_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm | Slot::MlpNormBias) => &[("ln_2", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("mlp.c_fc", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.c_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = read(config)?;
    if config.flag("scale_attn_by_inverse_layer_idx", false)? {
        for (index, heads) in decoder::heads_mut(&mut spec).enumerate() {
            heads.score_scale /= (index + 1) as f32;
        }
    }
    Ok(spec)
}

/// Reads what GPT-2 and StarCoder have in common.
pub(super) fn read(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("add_cross_attention", false, "attention to an encoder")?;
    let traits = Traits {
        keys: KEYS,
        rotary: false,
        tied_head: true,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::GeluTanh,
        gated: false,
        fourfold_width: true,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.positions = Some(LearnedPositions { rows: spec.max_positions, first: 0 });
    if !config.flag("scale_attn_weights", true)? {
        decoder::heads_mut(&mut spec).for_each(|heads| heads.score_scale = 1.0);
    }
    Ok(spec)
}
