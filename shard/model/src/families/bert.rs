//! BERT: an encoder with learned positions and token types.

use super::encoder::{self, OLD_NORM_BIASES, OLD_NORM_SCALES, bert_tensors};
use super::family::Family;
use super::names::{LLAMA, Names};

pub(super) const FAMILY: Family = Family {
    model_type: "bert",
    architectures: &["BertModel", "BertForMaskedLM"],
    spec: |config| encoder::read(config, 0),
    names: Names {
        layers: "bert.encoder.layer.",
        tensors: bert_tensors!("bert"),
        aliases: &[("bert.", ""), OLD_NORM_SCALES, OLD_NORM_BIASES],
        token_types: Some("bert.embeddings.token_type_embeddings"),
        ..LLAMA
    },
};
