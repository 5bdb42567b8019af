//! InternLM3: Llama with optional biases and an explicit size of heads.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "internlm3", architectures: &["InternLM3ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("bias", false)?;
    let traits = Traits {
        qkv_bias: config.flag("qkv_bias", false)?,
        out_bias: bias,
        mlp_bias: bias,
        ..Traits::default()
    };
    decoder::read(config, &traits)
}
