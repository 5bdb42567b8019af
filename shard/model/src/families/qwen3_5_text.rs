//! The text part of Qwen3.5: gated delta nets in three of four layers, and dense MLPs.

use super::config::Config;
use super::decoder::Traits;
use super::delta;
use super::error::ConfigError;
use super::family::Family;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "qwen3_5_text", architectures: &["Qwen3_5ForCausalLM"], spec, names: delta::NAMES };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    delta::read(config, Traits { kv_heads: Some(4), ..Traits::default() })
}
