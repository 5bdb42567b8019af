//! Llama 1 to 3, and other models in its layout.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{self, Names};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "llama",
    architectures: &["LlamaForCausalLM"],
    spec,
    names: Names {
        // Those of the first Yi.
        aliases: &[("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2")],
        ..names::LLAMA
    },
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let mlp_bias = config.flag("mlp_bias", false)?;
    decoder::read(config, &Traits { qkv_bias: bias, out_bias: bias, mlp_bias, ..Traits::default() })
}
