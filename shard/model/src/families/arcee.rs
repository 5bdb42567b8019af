//! Arcee AFM: Llama with squared ReLUs instead of gates.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "arcee", architectures: &["ArceeForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        gated: false,
        act: Activation::ReluSquared,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: config.flag("mlp_bias", false)?,
        norm_eps: Some(1e-5),
        ..Traits::default()
    };
    decoder::read(config, &traits)
}
