//! Cohere's Command R7B and Command A: Command R with windows in three of four layers, and no
//! positions in the others.

use super::config::Config;
use super::error::ConfigError;
use super::family::Family;
use super::{cohere, decoder, names};
use crate::description::{DecoderSpec, HeadNormPlan};

pub(super) const FAMILY: Family =
    Family { model_type: "cohere2", architectures: &["Cohere2ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = cohere::read(config, HeadNormPlan::None)?;
    let window = decoder::window(config, 4096)?;
    let pattern = config.optional_size("sliding_window_pattern", usize::MAX)?.unwrap_or(4);
    decoder::slide_by_pattern(config, &mut spec, window, pattern)?;
    decoder::rotate_only_windows(&mut spec);
    Ok(spec)
}
