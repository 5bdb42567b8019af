//! OLMo 3: OLMo 2 with windows in three of four layers, which are rotated without scaling.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::{names, olmo2};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "olmo3", architectures: &["Olmo3ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let theta = config.optional_number("rope_theta", 1.0)?.unwrap_or(500_000.0);
    let traits = Traits { theta: Some(theta), window_theta: Some(theta), ..Traits::default() };
    let mut spec = olmo2::read(config, traits)?;
    let window = decoder::window(config, 4096)?;
    decoder::slide_by_pattern(config, &mut spec, window, 4)?;
    decoder::rotate_windows(&mut spec);
    Ok(spec)
}
