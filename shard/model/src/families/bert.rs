//! BERT: an encoder with learned positions and token types.

use super::config::Config;
use super::encoder::{self, OLD_NORM_BIASES, OLD_NORM_SCALES, bert_tensors};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::FeatureBlock::{Classes, Hidden};
use crate::description::{ClassifierKind, ClassifierPlan, DecoderSpec, WeightSlot};

pub(super) const FAMILY: Family = Family {
    model_type: "bert",
    architectures: &["BertModel", "BertForMaskedLM", "BertForSequenceClassification"],
    spec: read,
    names: Names {
        layers: "bert.encoder.layer.",
        tensors: |slot| match slot {
            WeightSlot::ClassifierDense | WeightSlot::ClassifierDenseBias => {
                &[("bert.pooler.dense", &[Hidden])]
            }
            WeightSlot::ClassifierOut | WeightSlot::ClassifierOutBias => &[("classifier", &[Classes])],
            other => bert_tensors!("bert")(other),
        },
        aliases: &[("bert.", ""), OLD_NORM_SCALES, OLD_NORM_BIASES],
        token_types: Some("bert.embeddings.token_type_embeddings"),
        ..LLAMA
    },
};

/// Reads BERT, whose classifier is the pooler of its training and one more matrix.
fn read(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut spec = encoder::read(config, 0)?;
    let plan = |classes| ClassifierPlan { classes, kind: ClassifierKind::Tanh };
    spec.head.classifier = encoder::classes(config)?.map(plan);
    Ok(spec)
}
