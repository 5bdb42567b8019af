//! Baichuan 7B: Llama with query, key and value in one tensor.
//!
//! The 13B models use ALiBi positions, and Baichuan2 normalizes its head. Both are refused.

use super::config::Config;
use super::decoder::{self, Keys, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::model::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

/// The architecture of the first release, which is rotary at any size. Later releases have another
/// spelling.
const ROTARY: &str = "BaiChuanForCausalLM";

pub(super) const FAMILY: Family = Family {
    model_type: "baichuan",
    architectures: &[ROTARY, "BaichuanForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Key, Query, Value};
    use LayerSlot::{Qkv, QkvBias};
    match slot {
        WeightSlot::Layer(_, Qkv | QkvBias) => &[("self_attn.W_pack", &[Query, Key, Value])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let rotary = config
        .optional::<Vec<String>>("architectures")?
        .is_some_and(|names| names.iter().any(|n| n == ROTARY));
    if !rotary && config.optional::<usize>("hidden_size")?.is_some_and(|hidden| hidden != 4096) {
        return Err(config.unsupported("hidden_size", "Baichuan models of this size use ALiBi positions"));
    }
    let normalized_head = "Baichuan2 normalizes the rows of its head";
    config.refuse("z_loss_weight", normalized_head)?;
    if config.optional::<usize>("vocab_size")? == Some(125_696) {
        return Err(config.unsupported("vocab_size", normalized_head));
    }
    let positions = if config.mentions("max_position_embeddings") {
        "max_position_embeddings"
    } else {
        "model_max_length"
    };
    // There are as many key and value heads as query heads. A file that says otherwise belongs to
    // another model.
    config.refuse("num_key_value_heads", "Baichuan has no grouped heads")?;
    decoder::read(config, &Traits { keys: Keys { positions, ..USUAL_KEYS }, ..Traits::default() })
}
