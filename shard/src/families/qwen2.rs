//! Qwen2 and Qwen2.5: Llama with biases on query, key and value, and a sliding window in the upper layers if it is on.

use super::config::{Config, ConfigError};
use super::decoder::{self, Traits};
use super::{Family, names};
use crate::model::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "qwen2", architectures: &["Qwen2ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits { qkv_bias: true, kv_heads: Some(32), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    slide(config, &mut spec)?;
    Ok(spec)
}

/// `sliding_window` is written into all files, but counts only in those that switch it on.
pub(super) fn slide(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let on = config.flag("use_sliding_window", false)?;
    let window = if on { decoder::window(config, 4096)? } else { None };
    let first = config.optional("max_window_layers")?.unwrap_or(28);
    decoder::slide(config, spec, window, first)
}
