//! SmolLM3: Llama whose every fourth layer encodes no positions.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::model::{DecoderSpec, Positions};

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
    let interval = config.optional_size("no_rope_layer_interval", usize::MAX)?.unwrap_or(4);
    let count = spec.layers.len();
    let rotated: Vec<bool> = match config.optional::<Vec<u8>>("no_rope_layers")? {
        // The list has 1 for layers that are rotated, in spite of its name.
        Some(list) if list.len() == count => list.iter().map(|&rotates| rotates != 0).collect(),
        Some(list) => {
            let reason = format!("has {} entries for {count} layers", list.len());
            return Err(config.invalid("no_rope_layers", reason));
        }
        None => (1..=count).map(|layer| layer % interval != 0).collect(),
    };
    for (heads, _) in decoder::heads_mut(&mut spec).zip(rotated).filter(|(_, rotates)| !rotates) {
        heads.positions = Positions::None;
    }
    let is_on = config.flag("use_sliding_window", false)?;
    let window = config.optional_size("sliding_window", usize::MAX)?.filter(|_| is_on);
    decoder::slide_if_listed(config, &mut spec, window)?;
    Ok(spec)
}
