//! Jina Embeddings v3: an XLM-RoBERTa with rotary positions.

use millrace_backend::Activation;

use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::encoder::{self, MAX_TYPES, normalize_sums};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    ClassifierKind, ClassifierPlan, DecoderSpec, FeatureBlock, LayerSlot, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "jina_embeddings_v3",
    architectures: &[
        "JinaEmbeddingsV3Model",
        "JinaEmbeddingsV3ForMaskedLM",
        "JinaEmbeddingsV3ForSequenceClassification",
    ],
    spec,
    names: Names {
        layers: "roberta.encoder.layers.",
        tensors,
        aliases: &[("roberta.", "")],
        token_types: Some("roberta.embeddings.token_type_embeddings"),
        ..LLAMA
    },
};

/// The names under which transformers writes the tensors, and not the names in its code.
fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Hidden, Key, Query, Up, Value, Vocabulary};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Embedding => &[("roberta.embeddings.word_embeddings", &[Vocabulary])],
        WeightSlot::EmbeddingNorm | WeightSlot::EmbeddingNormBias => &[("roberta.emb_ln", &[Hidden])],
        WeightSlot::Layer(_, Slot::Qkv | Slot::QkvBias) => &[("mixer.Wqkv", &[Query, Key, Value])],
        WeightSlot::Layer(_, Slot::Out | Slot::OutBias) => &[("mixer.out_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpNorm | Slot::MlpNormBias) => &[("norm1", &[Hidden])],
        WeightSlot::Layer(_, Slot::Up | Slot::UpBias) => &[("mlp.fc1", &[Up])],
        WeightSlot::Layer(_, Slot::Down | Slot::DownBias) => &[("mlp.fc2", &[Hidden])],
        WeightSlot::Layer(_, Slot::MlpOutNorm | Slot::MlpOutNormBias) => &[("norm2", &[Hidden])],
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let traits = Traits {
        keys: Keys { norm_eps: "layer_norm_eps", ..USUAL_KEYS },
        theta: Some(20_000.0),
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::Gelu,
        gated: false,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.token_types = Some(config.optional_size("type_vocab_size", MAX_TYPES)?.unwrap_or(1));
    normalize_sums(&mut spec);
    let plan = |classes| ClassifierPlan { classes, kind: ClassifierKind::Tanh };
    spec.head.classifier = encoder::classes(config)?.map(plan);
    Ok(spec)
}
