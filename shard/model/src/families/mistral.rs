//! Mistral: Llama with a sliding window in all layers.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "mistral", architectures: &["MistralForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = decoder::read(config, &Traits { kv_heads: Some(8), ..Traits::default() })?;
    let window = decoder::window(config, 4096)?;
    decoder::slide(config, &mut spec, window, 0)?;
    Ok(spec)
}
