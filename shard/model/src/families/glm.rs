//! GLM-4 in the layout of transformers: interleaved rotation of half of each head, gate and up in
//! one tensor.

use millrace_backend::RopeStyle;

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family =
    Family { model_type: "glm", architectures: &["GlmForCausalLM"], spec, names: Names { tensors, ..LLAMA } };

pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    use LayerSlot::{GateUp, GateUpBias};
    match slot {
        WeightSlot::Layer(_, GateUp | GateUpBias) => {
            &[("mlp.gate_up_proj", &[FeatureBlock::Gate, FeatureBlock::Up])]
        }
        other => other.usual_tensors(),
    }
}

pub(super) fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
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
