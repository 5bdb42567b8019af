//! The names of tensors of the families before Llama. Query, key and value are one tensor.

use super::naming::Naming;

/// GPT-2 and StarCoder.
pub(super) const GPT2: Naming = Naming {
    layers: "transformer.h.",
    outer: &[
        ("token_embd", "transformer.wte"),
        ("position_embd", "transformer.wpe"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    inner: &[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ],
    special: &[],
    recurrent: &[],
    experts: &[],
};

/// GPT-NeoX and Pythia.
pub(super) const GPT_NEOX: Naming = Naming {
    layers: "gpt_neox.layers.",
    outer: &[
        ("token_embd", "gpt_neox.embed_in"),
        ("output_norm", "gpt_neox.final_layer_norm"),
        ("output", "embed_out"),
    ],
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "attention.query_key_value"),
        ("attn_output", "attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ],
    ..GPT2
};

/// BLOOM and Falcon.
pub(super) const BLOOM: Naming = Naming {
    outer: &[
        ("token_embd", "transformer.word_embeddings"),
        ("token_embd_norm", "transformer.word_embeddings_layernorm"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attention.query_key_value"),
        ("attn_output", "self_attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ],
    ..GPT2
};

/// MPT.
pub(super) const MPT: Naming = Naming {
    layers: "transformer.blocks.",
    outer: &[("token_embd", "transformer.wte"), ("output_norm", "transformer.norm_f"), ("output", "lm_head")],
    inner: &[
        ("attn_norm", "norm_1"),
        ("attn_qkv", "attn.Wqkv"),
        ("attn_output", "attn.out_proj"),
        ("ffn_norm", "norm_2"),
        ("ffn_up", "ffn.up_proj"),
        ("ffn_down", "ffn.down_proj"),
    ],
    ..GPT2
};

/// Qwen of the first version. The first of its matrices is the one that is not activated.
pub(super) const QWEN: Naming = Naming {
    layers: "transformer.h.",
    outer: &[("token_embd", "transformer.wte"), ("output_norm", "transformer.ln_f"), ("output", "lm_head")],
    inner: &[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_gate", "mlp.w2"),
        ("ffn_up", "mlp.w1"),
        ("ffn_down", "mlp.c_proj"),
    ],
    ..GPT2
};
