//! The text part of Qwen3-VL with experts: Qwen3 MoE with the experts of a layer in one tensor.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names, StackedExperts};
use super::qwen3;
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3_vl_moe_text",
    architectures: &[],
    spec,
    names: Names { tensors, experts: StackedExperts::ByInput, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Up};
    match slot {
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => &[("mlp.experts.gate_up_proj", &[Gate, Up])],
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("mlp.experts.down_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 60),
    top_k: ("num_experts_per_tok", 4),
    width: ("moe_intermediate_size", 1408),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    // The weights of the chosen experts are always normalized.
    config.insist("norm_topk_prob", true, "weights of experts that are not normalized")?;
    let mut spec = decoder::read(config, &Traits { kv_heads: Some(16), ..qwen3::traits(config)? })?;
    let of_layers = experts::read(config, &KEYS)?;
    experts::place_sparsely(config, &mut spec, &of_layers)?;
    Ok(spec)
}
