//! The names of tensors of encoders, whose residual stream is normalized after each sum.

use super::naming::Naming;

/// BERT, RoBERTa and XLM-RoBERTa.
pub(super) const BERT: Naming = Naming {
    layers: "bert.encoder.layer.",
    outer: &[
        ("token_embd", "bert.embeddings.word_embeddings"),
        ("token_types", "bert.embeddings.token_type_embeddings"),
        ("position_embd", "bert.embeddings.position_embeddings"),
        ("token_embd_norm", "bert.embeddings.LayerNorm"),
        ("cls", "bert.pooler.dense"),
        ("cls.output", "classifier"),
    ],
    inner: &[
        ("attn_q", "attention.self.query"),
        ("attn_k", "attention.self.key"),
        ("attn_v", "attention.self.value"),
        ("attn_output", "attention.output.dense"),
        ("attn_output_norm", "attention.output.LayerNorm"),
        ("ffn_up", "intermediate.dense"),
        ("ffn_down", "output.dense"),
        ("layer_output_norm", "output.LayerNorm"),
    ],
    special: &[],
    recurrent: &[],
    experts: &[],
};

/// The begins of names of RoBERTa, which has the layers and the classifier of BERT.
pub(super) const ROBERTA: [(&str, &str); 3] = [
    ("roberta.", "bert."),
    ("classifier.dense.", "bert.pooler.dense."),
    ("classifier.out_proj.", "classifier."),
];

/// Nomic's BERT.
pub(super) const NOMIC_BERT: Naming = Naming {
    layers: "nomic_bert.encoder.layers.",
    outer: &[
        ("token_embd", "nomic_bert.embeddings.word_embeddings"),
        ("token_types", "nomic_bert.embeddings.token_type_embeddings"),
        ("token_embd_norm", "nomic_bert.emb_ln"),
    ],
    inner: &[
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.out_proj"),
        ("attn_output_norm", "norm1"),
        ("ffn_gate", "mlp.fc12"),
        ("ffn_up", "mlp.fc11"),
        ("ffn_down", "mlp.fc2"),
        ("layer_output_norm", "norm2"),
    ],
    ..BERT
};

/// Jina Embeddings v3, an XLM-RoBERTa with rotary positions.
pub(super) const JINA_BERT_V3: Naming = Naming {
    layers: "roberta.encoder.layers.",
    outer: &[
        ("token_embd", "roberta.embeddings.word_embeddings"),
        ("token_types", "roberta.embeddings.token_type_embeddings"),
        ("token_embd_norm", "roberta.emb_ln"),
    ],
    inner: &[
        ("attn_qkv", "mixer.Wqkv"),
        ("attn_output", "mixer.out_proj"),
        ("attn_output_norm", "norm1"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
        ("layer_output_norm", "norm2"),
    ],
    ..BERT
};

/// ModernBERT, with gate and up in one tensor.
pub(super) const MODERN_BERT: Naming = Naming {
    layers: "model.layers.",
    outer: &[
        ("token_embd", "model.embeddings.tok_embeddings"),
        ("token_embd_norm", "model.embeddings.norm"),
        ("output_norm", "model.final_norm"),
        ("cls", "head.dense"),
        ("cls.norm", "head.norm"),
        ("cls.output", "classifier"),
    ],
    inner: &[
        ("attn_norm", "attn_norm"),
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.Wo"),
        ("ffn_norm", "mlp_norm"),
        ("ffn_up", "mlp.Wi"),
        ("ffn_down", "mlp.Wo"),
    ],
    ..BERT
};
