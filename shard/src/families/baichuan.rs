//! Baichuan 7B: Llama with query, key and value in one tensor.
//!
//! The 13B models mark positions by ALiBi, and Baichuan2 normalises its head; both are refused.

use super::Family;
use super::config::{Config, ConfigError};
use super::decoder::{self, Keys, Traits, USUAL_KEYS};
use super::names::{Block, LLAMA, Names};
use crate::model::DecoderSpec;

/// Only its first release was spelled like this, and that was rotary at any size.
const ROTARY: &str = "BaiChuanForCausalLM";

pub(super) const FAMILY: Family = Family {
    model_type: "baichuan",
    architectures: &[ROTARY, "BaichuanForCausalLM"],
    spec,
    names: Names { qkv: &[("self_attn.W_pack", &[Block::Query, Block::Key, Block::Value])], ..LLAMA },
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let rotary = config
        .optional::<Vec<String>>("architectures")?
        .is_some_and(|names| names.iter().any(|n| n == ROTARY));
    if !rotary && config.optional::<usize>("hidden_size")?.is_some_and(|hidden| hidden != 4096) {
        return Err(config.unsupported("hidden_size", "Baichuan models of this size use ALiBi positions"));
    }
    let normalised_head = "Baichuan2 normalises the rows of its head";
    config.refuse("z_loss_weight", normalised_head)?;
    if config.optional::<usize>("vocab_size")? == Some(125_696) {
        return Err(config.unsupported("vocab_size", normalised_head));
    }
    let positions = if config.mentions("max_position_embeddings") {
        "max_position_embeddings"
    } else {
        "model_max_length"
    };
    // There are as many key and value heads as query heads: no file may say otherwise.
    config.refuse("num_key_value_heads", "Baichuan has no grouped heads")?;
    decoder::read(config, &Traits { keys: Keys { positions, ..USUAL_KEYS }, ..Traits::default() })
}
