//! Cohere's Command R: parallel branches after one layer norm without a bias, and interleaved
//! rotation.

use millrace_backend::RopeStyle;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, HeadNormPlan, Residual};

pub(super) const FAMILY: Family =
    Family { model_type: "cohere", architectures: &["CohereForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let per_head = config.flag("use_qk_norm", false)?;
    let head_norm = if per_head { HeadNormPlan::PerHead } else { HeadNormPlan::None };
    read(config, head_norm)
}

/// Reads what both versions of the family have in common.
pub(super) fn read(config: &Config, head_norm: HeadNormPlan) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        rope: RopeStyle::Interleaved,
        tied_head: true,
        norm: NormTrait::Layer { bias: false },
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        head_norm,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.residual = Residual::Parallel { has_mlp_norm: false };
    let factor = config.optional_number("logit_scale", f64::MIN_POSITIVE)?;
    spec.head.factor = factor.unwrap_or(0.0625) as f32;
    Ok(spec)
}
