//! Phi-3, Phi-3.5 and Phi-4: Llama with fused projections, and the LongRoPE rotation.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "phi3",
    architectures: &["Phi3ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Key, Query, Up, Value};
    match slot {
        WeightSlot::Layer(_, LayerSlot::Qkv) => &[("self_attn.qkv_proj", &[Query, Key, Value])],
        WeightSlot::Layer(_, LayerSlot::GateUp) => &[("mlp.gate_up_proj", &[Gate, Up])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = decoder::read(config, &Traits::default())?;
    let window = config.optional_size("sliding_window", usize::MAX)?;
    decoder::slide(config, &mut spec, window, 0)?;
    Ok(spec)
}
