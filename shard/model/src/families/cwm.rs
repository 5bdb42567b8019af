//! Code World Model: Llama with windows in three of four layers.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "cwm", architectures: &["CwmForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    if !config.mentions("rope_parameters") && !config.mentions("rope_scaling") {
        // transformers would use a scaling with parameters of its own.
        return Err(config.missing("rope_parameters"));
    }
    let traits = Traits {
        kv_heads: Some(8),
        head_dim: Some(128),
        theta: Some(1_000_000.0),
        norm_eps: Some(1e-5),
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let window = decoder::window(config, 8192)?;
    if config.mentions("layer_types") {
        decoder::slide(config, &mut spec, window, 0)?;
    } else if let Some(window) = window {
        let windowed = spec.layers.iter_mut().enumerate().filter(|(index, _)| index % 4 != 0);
        windowed.for_each(|(_, layer)| layer.attention.slide(window));
    }
    Ok(spec)
}
