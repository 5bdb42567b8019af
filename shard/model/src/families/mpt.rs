//! MPT: linear biases or learned positions, layer norms without biases, and query, key and value in
//! one tensor.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, SlopeRule, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "mpt",
    architectures: &["MptForCausalLM", "MPTForCausalLM"],
    spec,
    names: Names { layers: "transformer.blocks.", tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("transformer.wte", &[Vocabulary])],
        WeightSlot::FinalNorm => &[("transformer.norm_f", &[Hidden])],
        WeightSlot::Layer(_, Slot::AttentionNorm) => &[("norm_1", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv) => &[("attn.Wqkv", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out) => &[("attn.out_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm) => &[("norm_2", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up) => &[("ffn.up_proj", &[Up])],
        WeightSlot::Layer(_, Slot::Down) => &[("ffn.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: Keys = Keys {
    hidden: "d_model",
    layers: "n_layers",
    heads: "n_heads",
    width: "intermediate_size",
    positions: "max_seq_len",
    norm_eps: "layer_norm_epsilon",
    ..USUAL_KEYS
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("no_bias", true, "biases")?;
    config.insist("expansion_ratio", 4, "MLPs of another width than four times d_model")?;
    let attention = config.object("attn_config")?;
    let attention = attention.as_ref().unwrap_or(config);
    attention.insist("prefix_lm", false, "prompts that attend to later tokens")?;
    attention.insist("qk_ln", false, "norms of queries and keys")?;
    attention.insist("attn_type", "multihead_attention", "shared key and value heads")?;
    let traits = Traits {
        keys: KEYS,
        rotary: false,
        tied_head: true,
        norm: NormTrait::Layer { bias: false },
        norm_eps: Some(1e-5),
        act: Activation::Gelu,
        gated: false,
        fourfold_width: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    decoder::clip(attention, &mut spec)?;
    if !attention.flag("alibi", true)? {
        return Err(attention.unsupported("alibi", "learned positions of MPT"));
    }
    let max = attention.optional_number("alibi_bias_max", f64::MIN_POSITIVE)?.unwrap_or(8.0) as f32;
    decoder::use_linear_biases(&mut spec, SlopeRule::Above { max });
    if let Some(scale) = attention.optional_number("softmax_scale", f64::MIN_POSITIVE)? {
        decoder::heads_mut(&mut spec).for_each(|heads| heads.score_scale = scale as f32);
    }
    Ok(spec)
}
