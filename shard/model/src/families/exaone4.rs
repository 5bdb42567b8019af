//! EXAONE 4: Llama with norms of heads, and norms after both branches instead of before them. Large
//! models have windows in three of four layers, and no positions in the others.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, HeadNormPlan, NormPlace};

pub(super) const FAMILY: Family =
    Family { model_type: "exaone4", architectures: &["Exaone4ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = read(config)?;
    spec.norm.place = NormPlace::AfterBranches;
    Ok(spec)
}

/// Reads a decoder with this attention and norms before the branches.
pub(super) fn read(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits { kv_heads: Some(32), head_norm: HeadNormPlan::Shared, ..Traits::default() };
    let mut spec = decoder::read(config, &traits)?;
    if let Some(window) = decoder::window(config, 4096)? {
        // The pattern is a number, or a word such as LLLG with a letter for each layer.
        let pattern = match config.optional::<String>("sliding_window_pattern") {
            Ok(word) => word.map_or(4, |word| word.len().max(1)),
            Err(_) => config.optional_size("sliding_window_pattern", usize::MAX)?.unwrap_or(4),
        };
        decoder::slide_by_pattern(config, &mut spec, Some(window), pattern)?;
        decoder::rotate_only_windows(&mut spec);
    }
    Ok(spec)
}
