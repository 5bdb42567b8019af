//! GLM-4-0414 in the layout of transformers: GLM-4 with norms around both branches.

use super::config::Config;
use super::error::ConfigError;
use super::family::Family;
use super::glm;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, NormPlace, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "glm4",
    architectures: &["Glm4ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::Hidden;
    match slot {
        WeightSlot::Layer(_, LayerSlot::AttentionOutNorm) => &[("post_self_attn_layernorm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::MlpOutNorm) => &[("post_mlp_layernorm", &[Hidden])],
        other => glm::tensors(other),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = glm::spec(config)?;
    spec.norm.place = NormPlace::AroundBranches;
    Ok(spec)
}
