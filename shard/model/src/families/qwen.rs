//! Qwen of the first version: Llama under other names, with biases on query, key and value.

use super::config::Config;
use super::decoder::{self, Keys, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "qwen",
    architectures: &["QWenLMHeadModel"],
    spec,
    names: Names { layers: "transformer.h.", tensors, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("transformer.wte", &[Vocabulary])],
        WeightSlot::FinalNorm => &[("transformer.ln_f", &[Hidden])],
        WeightSlot::Layer(_, Slot::AttentionNorm) => &[("ln_1", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => &[("attn.c_attn", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out) => &[("attn.c_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm) => &[("ln_2", &[Hidden])],
        WeightSlot::Layer(_, Slot::GateUp) => &[("mlp.w2", &[Gate]), ("mlp.w1", &[Up])],
        WeightSlot::Layer(_, Slot::Down) => &[("mlp.c_proj", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("no_bias", true, "biases of all projections")?;
    let traits = Traits {
        keys: Keys {
            head_dim: "kv_channels",
            // Beyond the length of the training, the original code changes the base of the rotation
            // and the scale of queries. Such contexts are not served.
            positions: "seq_length",
            norm_eps: "layer_norm_epsilon",
            ..USUAL_KEYS
        },
        partial_rotary: config.optional_number("rotary_pct", 0.0)?.unwrap_or(1.0),
        theta: config.optional_number("rotary_emb_base", 1.0)?,
        norm_eps: Some(1e-6),
        qkv_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    for layer in &mut spec.layers {
        if let Some(mlp) = layer.mlp.dense_mut() {
            // The configuration has the width of gate and up together.
            mlp.width /= 2;
        }
    }
    Ok(spec)
}
