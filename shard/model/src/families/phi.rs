//! Phi-1, Phi-1.5 and Phi-2: parallel branches after one layer norm, and biases everywhere, at the
//! head too.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, Residual, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family =
    Family { model_type: "phi", architectures: &["PhiForCausalLM"], spec, names: Names { tensors, ..LLAMA } };

pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{HeadDim, Hidden};
    use LayerSlot::{Down, DownBias, KNorm, KNormBias, Out, OutBias, QNorm, QNormBias, Up, UpBias};
    match slot {
        WeightSlot::Layer(_, QNorm | QNormBias) => &[("self_attn.q_layernorm", &[HeadDim])],
        WeightSlot::Layer(_, KNorm | KNormBias) => &[("self_attn.k_layernorm", &[HeadDim])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("model.final_layernorm", &[Hidden])],
        WeightSlot::Layer(_, Out | OutBias) => &[("self_attn.dense", &[Hidden])],
        WeightSlot::Layer(_, Up | UpBias) => &[("mlp.fc1", &[FeatureBlock::Up])],
        WeightSlot::Layer(_, Down | DownBias) => &[("mlp.fc2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

pub(super) fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let has_head_norm = config.flag("qk_layernorm", false)?;
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        partial_rotary: 0.5,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::GeluTanh,
        gated: false,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        head_norm: if has_head_norm { HeadNormPlan::SharedWithBias } else { HeadNormPlan::None },
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.residual = Residual::Parallel { has_mlp_norm: false };
    spec.head.bias = true;
    Ok(spec)
}
