//! GLM-4 in the layout of transformers: interleaved rotation of half of each head, gate and up in one tensor.

use millrace_kernels::RopeStyle;

use super::Family;
use super::config::{Config, ConfigError};
use super::decoder::{self, Traits};
use super::names::{Block, LLAMA, Names};
use crate::model::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "glm",
    architectures: &["GlmForCausalLM"],
    spec,
    names: Names { gate_up: &[("mlp.gate_up_proj", &[Block::Gate, Block::Up])], ..LLAMA },
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        qkv_bias: config.flag("attention_bias", false)?,
        kv_heads: Some(2),
        head_dim: Some(128),
        partial_rotary: 0.5,
        rope: RopeStyle::Interleaved,
        ..Traits::default()
    };
    decoder::read(config, &traits)
}
