//! XLM-RoBERTa: RoBERTa for many languages.

use super::encoder::{self, bert_tensors};
use super::family::Family;
use super::names::{LLAMA, Names};

pub(super) const FAMILY: Family = Family {
    model_type: "xlm-roberta",
    architectures: &["XLMRobertaModel", "XLMRobertaForMaskedLM"],
    spec: encoder::read_after_padding,
    names: Names {
        layers: "roberta.encoder.layer.",
        tensors: bert_tensors!("roberta"),
        aliases: &[("roberta.", "")],
        token_types: Some("roberta.embeddings.token_type_embeddings"),
        ..LLAMA
    },
};
