//! Ministral 3: Mistral with factors on queries that grow beyond the length of the pre-training.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::{names, rope};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "ministral3", architectures: &["Ministral3ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    if !config.mentions("rope_parameters") && !config.mentions("rope_scaling") {
        // transformers would use YaRN with parameters of its own.
        return Err(config.missing("rope_parameters"));
    }
    let traits = Traits { kv_heads: Some(8), head_dim: Some(128), norm_eps: Some(1e-5), ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    decoder::scale_queries(&mut spec, rope::query_scale(config)?);
    let window = config.optional_size("sliding_window", usize::MAX)?;
    decoder::slide(config, &mut spec, window, 0)?;
    Ok(spec)
}
