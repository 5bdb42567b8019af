//! StarCoder and SantaCoder: GPT-2 with one key and value head, and matrices that are stored as
//! usual.

use super::config::Config;
use super::error::ConfigError;
use super::family::Family;
use super::gpt2;
use super::names::{LLAMA, Names};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "gpt_bigcode",
    architectures: &["GPTBigCodeForCausalLM"],
    spec,
    // With one key and value head, one group has all query heads. Otherwise each head is a group.
    names: Names { layers: "transformer.h.", tensors: gpt2::tensors, grouped_qkv: true, ..LLAMA },
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = gpt2::read(config)?;
    if config.flag("multi_query", true)? {
        super::decoder::heads_mut(&mut spec).for_each(|heads| heads.layout.kv_heads = 1);
    }
    Ok(spec)
}
