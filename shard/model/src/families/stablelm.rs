//! StableLM: Llama with layer norms, and rotation of a quarter of each head.

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, Residual, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "stablelm",
    architectures: &["StableLmForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

/// The norms of heads are stored one by one.
fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Key, Query};
    match slot {
        WeightSlot::Layer(_, LayerSlot::QHeadsNorm) => &[("self_attn.q_layernorm.norms.*", &[Query])],
        WeightSlot::Layer(_, LayerSlot::KHeadsNorm) => &[("self_attn.k_layernorm.norms.*", &[Key])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        kv_heads: Some(32),
        partial_rotary: 0.25,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        qkv_bias: config.flag("use_qkv_bias", false)?,
        head_norm: if config.flag("qk_layernorm", false)? {
            HeadNormPlan::PerHead
        } else {
            HeadNormPlan::None
        },
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    if config.flag("use_parallel_residual", false)? {
        spec.residual = Residual::Parallel { has_mlp_norm: false };
    }
    Ok(spec)
}
