//! The architectures of encoders, which compute vectors of texts.

use super::adapt::encoders;
use super::architecture::{Architecture, PLAIN, Window};
use super::{encoder_names, names};

/// A BERT, a RoBERTa or an XLM-RoBERTa.
const BERT: Architecture = Architecture {
    name: "bert",
    model_type: "bert",
    class: "BertModel",
    also: &["roberta", "xlm-roberta"],
    epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
    naming: encoder_names::BERT,
    adapt: encoders::bert,
    ..PLAIN
};

/// The encoders.
pub(super) const ENCODERS: &[Architecture] = &[
    BERT,
    Architecture {
        name: "nomic-bert",
        model_type: "nomic_bert",
        class: "NomicBertModel",
        also: &[],
        naming: encoder_names::NOMIC_BERT,
        adapt: encoders::without_classifier,
        ..BERT
    },
    Architecture {
        name: "jina-bert-v3",
        model_type: "jina_embeddings_v3",
        class: "JinaEmbeddingsV3Model",
        also: &[],
        naming: encoder_names::JINA_BERT_V3,
        adapt: encoders::without_classifier,
        ..BERT
    },
    Architecture {
        name: "modern-bert",
        model_type: "modernbert",
        class: "ModernBertModel",
        epsilon: ("attention.layer_norm_epsilon", "norm_eps"),
        naming: encoder_names::MODERN_BERT,
        window: Window::ByFamily,
        adapt: encoders::modern_bert,
        ..PLAIN
    },
    Architecture {
        name: "gemma-embedding",
        model_type: "gemma3_text",
        class: "Gemma3TextModel",
        norms_plus_one: true,
        naming: names::SANDWICH,
        window: Window::ByFamily,
        adapt: encoders::gemma,
        ..PLAIN
    },
];
