//! GPT-J: parallel branches after one layer norm, interleaved rotation of a part of each head, and
//! a bias at the head.

use millrace_backend::{Activation, RopeStyle};

use super::config::Config;
use super::decoder::{self, NormTrait, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::gpt2;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, Residual, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "gptj",
    architectures: &["GPTJForCausalLM"],
    spec,
    names: Names { layers: "transformer.h.", tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Up, Value};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Layer(_, Slot::Qkv) => {
            &[("attn.q_proj", &[Query]), ("attn.k_proj", &[Key]), ("attn.v_proj", &[Value])]
        }
        WeightSlot::Layer(_, Slot::Out) => &[("attn.out_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("mlp.fc_in", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.fc_out", &[Hidden])],
        other => gpt2::tensors(other),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let heads: Option<f64> = config.optional("n_head")?;
    let hidden: Option<f64> = config.optional("n_embd")?;
    let rotary_dim = config.optional_number("rotary_dim", 2.0)?.unwrap_or(64.0);
    let traits = Traits {
        keys: gpt2::KEYS,
        partial_rotary: match (heads, hidden) {
            (Some(heads), Some(hidden)) if hidden > 0.0 => rotary_dim * heads / hidden,
            _ => 1.0,
        },
        rope: RopeStyle::Interleaved,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::GeluTanh,
        gated: false,
        fourfold_width: true,
        mlp_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.residual = Residual::Parallel { has_mlp_norm: false };
    spec.head.bias = true;
    Ok(spec)
}
