//! Qwen3: Llama with a norm on each query and key head, and optional biases and sliding windows.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::{names, qwen2};
use crate::description::{DecoderSpec, HeadNormPlan};

pub(super) const FAMILY: Family =
    Family { model_type: "qwen3", architectures: &["Qwen3ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits { kv_heads: Some(32), head_dim: Some(128), ..traits(config)? };
    let mut spec = decoder::read(config, &traits)?;
    qwen2::slide(config, &mut spec)?;
    Ok(spec)
}

/// Returns the properties of all Qwen3.
pub(super) fn traits(config: &Config) -> Result<Traits, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    Ok(Traits { head_norm: HeadNormPlan::Shared, qkv_bias: bias, out_bias: bias, ..Traits::default() })
}
