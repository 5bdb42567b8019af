//! Granite: Llama with factors on the embedding, the scores, the branches and the logits.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "granite", architectures: &["GraniteForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let mlp_bias = config.flag("mlp_bias", false)?;
    let mut spec =
        decoder::read(config, &Traits { qkv_bias: bias, out_bias: bias, mlp_bias, ..Traits::default() })?;
    set_factors(config, &mut spec)?;
    Ok(spec)
}

/// Sets the factors of Granite.
pub(super) fn set_factors(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let factor = |key| Ok::<_, ConfigError>(config.optional_number(key, f64::MIN_POSITIVE)?.unwrap_or(1.0));
    spec.embedding.factor = factor("embedding_multiplier")? as f32;
    spec.branch_factor = factor("residual_multiplier")? as f32;
    spec.head.factor = factor("logits_scaling")?.recip() as f32;
    let scale = factor("attention_multiplier")? as f32;
    decoder::heads_mut(spec).for_each(|heads| heads.score_scale = scale);
    Ok(())
}
