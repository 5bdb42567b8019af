//! OLMo of the first version: Llama with layer norms that have neither scales nor biases, and
//! bounds on queries, keys and values.

use super::config::Config;
use super::decoder::{self, NormTrait, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "olmo",
    architectures: &["OlmoForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

/// No tensor stores the scales of norms, which are 1.
fn tensors(slot: WeightSlot) -> StoredTensors {
    match slot {
        WeightSlot::FinalNorm | WeightSlot::Layer(_, LayerSlot::AttentionNorm | LayerSlot::MlpNorm) => &[],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        positions: Some(2048),
        norm: NormTrait::Layer { bias: false },
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    decoder::clip(config, &mut spec)?;
    Ok(spec)
}
