//! InternLM2: Llama under other names, with query, key and value in one tensor by groups of heads.

use super::config::Config;
use super::decoder::{self, Traits};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "internlm2",
    architectures: &["InternLM2ForCausalLM"],
    spec,
    names: Names { tensors, grouped_qkv: true, ..LLAMA },
};

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("model.tok_embeddings", &[Vocabulary])],
        WeightSlot::Head => &[("output", &[Vocabulary])],
        WeightSlot::Layer(_, Slot::AttentionNorm) => &[("attention_norm", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => &[("attention.wqkv", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attention.wo", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm) => &[("ffn_norm", &[Hidden])],
        WeightSlot::Layer(_, Slot::GateUp) => &[("feed_forward.w1", &[Gate]), ("feed_forward.w3", &[Up])],
        WeightSlot::Layer(_, Slot::Down) => &[("feed_forward.w2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let bias = config.flag("bias", false)?;
    decoder::read(config, &Traits { qkv_bias: bias, out_bias: bias, ..Traits::default() })
}
