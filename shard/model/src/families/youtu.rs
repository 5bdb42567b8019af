//! Youtu-LLM: latent attention as in DeepSeek-V3, and a dense MLP in every layer.

use super::config::Config;
use super::deepseek_v3;
use super::error::ConfigError;
use super::family::Family;
use super::latent::{self, LatentSizes};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "youtu", architectures: &["YoutuForCausalLM"], spec, names: latent::NAMES };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = deepseek_v3::decoder(config, &LatentSizes::DEEPSEEK)?;
    spec.tied_head = config.flag("tie_word_embeddings", true)?;
    Ok(spec)
}
