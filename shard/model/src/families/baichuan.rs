//! Baichuan: Llama with query, key and value in one tensor.
//!
//! Models of 13B have linear biases instead of a rotation, and Baichuan2 normalizes the rows of its
//! head.

use super::config::Config;
use super::decoder::{self, Keys, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, SlopeRule, StoredTensors, WeightSlot};

/// The architecture of the first release, which is rotary at any size. Later releases have another
/// spelling.
const ROTARY: &str = "BaiChuanForCausalLM";
/// The width of the later models that are rotary.
const ROTARY_WIDTH: usize = 4096;
/// The vocabulary of Baichuan2.
const VOCABULARY_OF_2: usize = 125_696;

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
    let of_first_release = config
        .optional::<Vec<String>>("architectures")?
        .is_some_and(|names| names.iter().any(|n| n == ROTARY));
    let hidden: Option<usize> = config.optional("hidden_size")?;
    let rotary = of_first_release || hidden == Some(ROTARY_WIDTH);
    let positions = if config.mentions("max_position_embeddings") {
        "max_position_embeddings"
    } else {
        "model_max_length"
    };
    // There are as many key and value heads as query heads. A file that says otherwise belongs to
    // another model.
    config.refuse("num_key_value_heads", "Baichuan has no grouped heads")?;
    let traits = Traits { keys: Keys { positions, ..USUAL_KEYS }, rotary, ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    if !rotary {
        decoder::use_linear_biases(&mut spec, SlopeRule::Below { factor: 1.0 });
    }
    // Both are signs of Baichuan2: the key is in its files, and its vocabulary in files that other
    // tools have written.
    spec.head.unit_rows = config.mentions("z_loss_weight") || spec.vocab == VOCABULARY_OF_2;
    Ok(spec)
}
