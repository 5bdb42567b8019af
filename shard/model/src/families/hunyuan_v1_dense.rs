//! Hunyuan V1: Llama with norms of heads after the rotation.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use super::rope;
use crate::description::{DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "hunyuan_v1_dense",
    architectures: &["HunYuanDenseV1ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

/// Returns the tensors that store a weight of a model without experts.
pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    match slot {
        WeightSlot::Layer(_, LayerSlot::QNorm) => &[("self_attn.query_layernorm", &[FeatureBlock::HeadDim])],
        WeightSlot::Layer(_, LayerSlot::KNorm) => &[("self_attn.key_layernorm", &[FeatureBlock::HeadDim])],
        other => other.usual_tensors(),
    }
}

/// Reads the specification of a model without experts.
pub(super) fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("use_qk_norm", true, "heads are normalized")?;
    config.insist("use_cla", false, "layers do not share keys and values")?;
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        positions: Some(2048),
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        head_norm: HeadNormPlan::SharedAfterRotation,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    rope::use_alpha(config, &mut spec.ropes[0])?;
    if spec.ropes[0].changes_lengths() {
        return Err(config.unsupported("rope_parameters", "heads are normalized after the rotation"));
    }
    Ok(spec)
}
