//! OLMo 2: Llama with norms after both branches instead of before them, and norms of all query
//! heads and of all key heads together.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::{DecoderSpec, HeadNormPlan, NormPlace};

pub(super) const FAMILY: Family =
    Family { model_type: "olmo2", architectures: &["Olmo2ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    read(config, Traits::default())
}

/// Reads what OLMo 2 and OLMo 3 have in common.
pub(super) fn read(config: &Config, traits: Traits) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let head_norm = HeadNormPlan::AllHeads;
    let traits = Traits { qkv_bias: bias, out_bias: bias, head_norm, norm_eps: Some(1e-5), ..traits };
    let mut spec = decoder::read(config, &traits)?;
    spec.norm.place = NormPlace::AfterBranches;
    Ok(spec)
}
