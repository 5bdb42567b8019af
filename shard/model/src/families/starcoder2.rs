//! StarCoder2: layer norms, biases, and a plain MLP with GELU.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "starcoder2",
    architectures: &["Starcoder2ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use LayerSlot::{Down, DownBias, Up, UpBias};
    match slot {
        WeightSlot::Layer(_, Up | UpBias) => &[("mlp.c_fc", &[FeatureBlock::Up])],
        WeightSlot::Layer(_, Down | DownBias) => &[("mlp.c_proj", &[FeatureBlock::Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("use_bias", true)?;
    let traits = Traits {
        keys: Keys { norm_eps: "norm_epsilon", ..USUAL_KEYS },
        kv_heads: Some(2),
        tied_head: true,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::GeluTanh,
        gated: false,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let window = config.optional_size("sliding_window", usize::MAX)?;
    decoder::slide(config, &mut spec, window, 0)?;
    Ok(spec)
}
