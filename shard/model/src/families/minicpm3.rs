//! MiniCPM3: latent attention and dense MLPs, with factors on embedding, branches and logits.

use super::config::Config;
use super::decoder::Traits;
use super::error::ConfigError;
use super::family::Family;
use super::latent::{self, LatentSizes};
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "minicpm3", architectures: &["MiniCPM3ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits =
        Traits { positions: Some(32_768), tied_head: true, norm_eps: Some(1e-5), ..Traits::default() };
    let sizes = LatentSizes { query_rank: 768, rank: 256, plain_dim: 64, rotary_dim: 32, value_dim: None };
    let mut spec = latent::read(config, &traits, &sizes)?;
    spec.embedding.factor = number(config, "scale_emb", 12.0, 1.0)?;
    let depth = (spec.layers.len() as f32).sqrt();
    spec.branch_factor = number(config, "scale_depth", 1.4, depth)? / depth;
    let hidden = spec.hidden as f32;
    spec.head.factor = number(config, "dim_model_base", 256.0, hidden)? / hidden;
    Ok(spec)
}

/// Reads a number above 0. `null` stands for the one without an effect.
fn number(config: &Config, key: &'static str, absent: f32, neutral: f32) -> Result<f32, ConfigError> {
    Ok(match config.optional_number(key, f64::MIN_POSITIVE)? {
        Some(number) => number as f32,
        None if config.mentions(key) => neutral,
        None => absent,
    })
}
