//! Apertus: norms of heads, and MLPs without gates whose activation function is trained.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "apertus",
    architectures: &["ApertusForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    match slot {
        WeightSlot::Layer(_, LayerSlot::AttentionNorm) => &[("attention_layernorm", &[FeatureBlock::Hidden])],
        WeightSlot::Layer(_, LayerSlot::MlpNorm) => &[("feedforward_layernorm", &[FeatureBlock::Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    if !config.mentions("rope_parameters") && !config.mentions("rope_scaling") {
        // transformers would use a scaling with parameters of its own.
        return Err(config.missing("rope_parameters"));
    }
    config.insist("hidden_act", "xielu", "the activation function must be xielu")?;
    config.insist("mlp_bias", false, "MLPs have no biases")?;
    config.insist("qk_norm", true, "heads are normalized")?;
    config.insist("post_norm", false, "branches are not normalized")?;
    let mut without_act = config.clone();
    without_act.remove("hidden_act");
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        theta: Some(12_000_000.0),
        positions: Some(65_536),
        norm_eps: Some(1e-5),
        gated: false,
        qkv_bias: bias,
        out_bias: bias,
        head_norm: HeadNormPlan::Shared,
        ..Traits::default()
    };
    let mut spec = decoder::read(&without_act, &traits)?;
    for mlp in spec.layers.iter_mut().filter_map(|layer| layer.mlp.dense_mut()) {
        mlp.xielu = true;
    }
    Ok(spec)
}
