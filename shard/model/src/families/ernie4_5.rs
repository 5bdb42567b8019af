//! ERNIE 4.5: Llama with interleaved rotation, and optional biases everywhere.

use millrace_backend::RopeStyle;

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "ernie4_5", architectures: &["Ernie4_5ForCausalLM"], spec, names: names::LLAMA };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    read(config, Traits { kv_heads: Some(2), head_dim: Some(128), ..Traits::default() })
}

/// Reads what ERNIE 4.5 with and without experts have in common.
pub(super) fn read(config: &Config, traits: Traits) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("use_bias", false)?;
    let traits = Traits {
        rope: RopeStyle::Interleaved,
        theta: Some(500_000.0),
        positions: Some(131_072),
        tied_head: true,
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: bias,
        ..traits
    };
    decoder::read(config, &traits)
}
