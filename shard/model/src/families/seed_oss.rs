//! Seed-OSS: Llama with biases on query, key and value.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "seed_oss", architectures: &["SeedOssForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        kv_heads: Some(8),
        head_dim: Some(128),
        qkv_bias: config.flag("attention_bias", true)?,
        out_bias: config.flag("attention_out_bias", false)?,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Traits::default()
    };
    decoder::read(config, &traits)
}
