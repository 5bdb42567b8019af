//! GPT-NeoX and Pythia: parallel branches with a layer norm each, and rotation of a quarter of each
//! head.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, Residual, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "gpt_neox",
    architectures: &["GPTNeoXForCausalLM"],
    spec,
    names: Names { layers: "gpt_neox.layers.", tensors, grouped_qkv: true, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("gpt_neox.embed_in", &[Vocabulary])],
        WeightSlot::FinalNorm | WeightSlot::FinalNormBias => &[("gpt_neox.final_layer_norm", &[Hidden])],
        WeightSlot::Head => &[("embed_out", &[Vocabulary])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => {
            &[("attention.query_key_value", &[Query, Key, Value])]
        }
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attention.dense", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("mlp.dense_h_to_4h", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.dense_4h_to_h", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("attention_bias", true)?;
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        partial_rotary: config.optional_number("rotary_pct", 0.0)?.unwrap_or(0.25),
        theta: config.optional_number("rotary_emb_base", 1.0)?,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::Gelu,
        gated: false,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    if config.flag("use_parallel_residual", true)? {
        spec.residual = Residual::Parallel { has_mlp_norm: true };
    }
    Ok(spec)
}
