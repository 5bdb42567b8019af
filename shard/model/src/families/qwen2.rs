//! Qwen2 and Qwen2.5: Llama with biases on query, key and value, and an optional sliding window in
//! the upper layers.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "qwen2", architectures: &["Qwen2ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits { qkv_bias: true, kv_heads: Some(32), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    slide(config, &mut spec)?;
    Ok(spec)
}

/// Sets the sliding windows. All files contain `sliding_window`, but only `use_sliding_window`
/// enables it.
pub(super) fn slide(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let on = config.flag("use_sliding_window", false)?;
    let window = if on { decoder::window(config, 4096)? } else { None };
    let first = config.optional("max_window_layers")?.unwrap_or(28);
    decoder::slide(config, spec, window, first)
}
