//! SmolLM3: Llama whose every fourth layer encodes no positions.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, Positions};

pub(super) const FAMILY: Family =
    Family { model_type: "smollm3", architectures: &["SmolLM3ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        kv_heads: Some(4),
        theta: Some(2e6),
        tied_head: true,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let rotated = decoder::rotated_layers(config, spec.layers.len())?;
    for (heads, _) in decoder::heads_mut(&mut spec).zip(rotated).filter(|(_, rotates)| !rotates) {
        heads.positions = Positions::None;
    }
    let is_on = config.flag("use_sliding_window", false)?;
    let window = config.optional_size("sliding_window", usize::MAX)?.filter(|_| is_on);
    decoder::slide_if_listed(config, &mut spec, window)?;
    Ok(spec)
}
