//! RoBERTa: a BERT whose positions are counted from behind the padding token.

use super::encoder::{self, OLD_NORM_BIASES, OLD_NORM_SCALES, bert_tensors};
use super::family::Family;
use super::names::{LLAMA, Names};

pub(super) const FAMILY: Family = Family {
    model_type: "roberta",
    architectures: &["RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"],
    spec: encoder::read_after_padding,
    names: Names {
        layers: "roberta.encoder.layer.",
        tensors: bert_tensors!("roberta"),
        aliases: &[("roberta.", ""), OLD_NORM_SCALES, OLD_NORM_BIASES],
        token_types: Some("roberta.embeddings.token_type_embeddings"),
        ..LLAMA
    },
};
