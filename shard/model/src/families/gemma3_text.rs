//! Gemma 3 without images: Gemma 2 with norms of heads instead of soft caps, and another rotation
//! in the layers with windows. As an encoder of texts it is EmbeddingGemma.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::gemma;
use super::gemma2::{self, Caps};
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, HeadNormPlan};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma3_text",
    architectures: &["Gemma3ForCausalLM"],
    spec,
    names: Names { tensors: gemma2::tensors, ..LLAMA },
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        kv_heads: Some(4),
        head_norm: HeadNormPlan::Shared,
        theta: Some(1e6),
        window_theta: Some(10_000.0),
        ..Traits::default()
    };
    let mut spec = gemma::read(config, traits)?;
    gemma2::norms_and_caps(config, &mut spec, Caps { scores: None, logits: None })?;
    let window = decoder::window(config, 4096)?;
    let pattern = config.optional_size("sliding_window_pattern", usize::MAX)?.unwrap_or(6);
    decoder::slide_by_pattern(config, &mut spec, window, pattern)?;
    decoder::rotate_windows(&mut spec);
    if config.flag("use_bidirectional_attention", false)? {
        look_both_ways(&mut spec);
    }
    Ok(spec)
}

/// Makes an encoder of the decoder (EmbeddingGemma). Its window has half of the tokens of the
/// configuration on each side of a token.
fn look_both_ways(spec: &mut DecoderSpec) {
    for layer in &mut spec.layers {
        if let Some(window) = layer.attention.window() {
            layer.attention.slide(window / 2 + 1);
        }
    }
    decoder::heads_mut(spec).for_each(|heads| heads.bidirectional = true);
    spec.head.is_absent = true;
}
