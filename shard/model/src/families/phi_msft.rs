//! Phi-1, Phi-1.5 and Phi-2 as their repositories first had them, with other keys, and names of the
//! code of these repositories.

use super::config::Config;
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use super::phi;
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "phi-msft",
    architectures: &["PhiForCausalLM"],
    spec,
    names: Names { layers: "transformer.h.", tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Value, Vocabulary};
    use LayerSlot::{AttentionNorm, AttentionNormBias, Out, OutBias, Qkv, QkvBias};
    match slot {
        WeightSlot::Embedding => &[("transformer.embd.wte", &[Vocabulary])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("lm_head.ln", &[Hidden])],
        WeightSlot::Head | WeightSlot::HeadBias => &[("lm_head.linear", &[Vocabulary])],
        WeightSlot::Layer(_, AttentionNorm | AttentionNormBias) => &[("ln", &[Hidden])],
        WeightSlot::Layer(_, Qkv | QkvBias) => &[("mixer.Wqkv", &[Query, Key, Value])],
        WeightSlot::Layer(_, Out | OutBias) => &[("mixer.out_proj", &[Hidden])],
        other => phi::tensors(other),
    }
}

/// Keys, and those of today's repositories with the same meaning.
const RENAMED: [(&str, &str); 8] = [
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_head_kv", "num_key_value_heads"),
    ("n_inner", "intermediate_size"),
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("activation_function", "hidden_act"),
];

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut config = config.clone();
    for (from, to) in RENAMED {
        if let Some(value) = config.optional::<serde_json::Value>(from)? {
            config.insert_absent(to, value);
        }
    }
    let hidden: Option<u32> = config.optional("hidden_size")?;
    let heads: Option<u32> = config.optional("num_attention_heads")?;
    let rotated = config.optional_number("rotary_dim", 2.0)?.unwrap_or(32.0);
    if let (Some(hidden), Some(heads)) = (hidden, heads) {
        let share = rotated * f64::from(heads) / f64::from(hidden);
        config.insert_absent("partial_rotary_factor", share.into());
        config.insert_absent("intermediate_size", (4 * u64::from(hidden)).into());
    }
    phi::spec(&config)
}
