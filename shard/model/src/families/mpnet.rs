//! MPNet: a RoBERTa without token types, whose scores have a bias by the distance of query and key.

use super::config::Config;
use super::decoder;
use super::encoder::{self, OLD_NORM_BIASES, OLD_NORM_SCALES};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    DecoderSpec, DistanceHeads, FeatureBlock, LayerSlot, Positions, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "mpnet",
    architectures: &["MPNetModel", "MPNetForMaskedLM"],
    spec,
    names: Names {
        layers: "mpnet.encoder.layer.",
        tensors,
        aliases: &[("mpnet.", ""), OLD_NORM_SCALES, OLD_NORM_BIASES],
        ..LLAMA
    },
};

/// The padding token by which positions are counted, whatever `pad_token_id` says.
const PADDING: usize = 1;

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{DistanceBuckets, Hidden, Key, Positions, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("mpnet.embeddings.word_embeddings", &[Vocabulary])],
        WeightSlot::Positions => &[("mpnet.embeddings.position_embeddings", &[Positions])],
        WeightSlot::EmbeddingNorm | WeightSlot::EmbeddingNormBias => {
            &[("mpnet.embeddings.LayerNorm", &[Hidden])]
        }
        WeightSlot::DistanceBias => &[("mpnet.encoder.relative_attention_bias", &[DistanceBuckets])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => {
            &[("attention.attn.q", &[Query]), ("attention.attn.k", &[Key]), ("attention.attn.v", &[Value])]
        }
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("attention.attn.o", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm | Slot::MlpNormBias) => &[("attention.LayerNorm", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("intermediate.dense", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("output.dense", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpOutNorm | Slot::MlpOutNormBias) => &[("output.LayerNorm", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let reason = "32 buckets of distances are supported";
    config.insist("relative_attention_num_buckets", 32, reason)?;
    let mut spec = encoder::read(config, PADDING + 1)?;
    spec.embedding.token_types = None;
    for heads in decoder::heads_mut(&mut spec) {
        heads.positions = Positions::Distance(DistanceHeads { all: heads.layout.heads, first: 0 });
    }
    Ok(spec)
}
