//! The names of tensors: those of GGUF, and those of Hugging Face for the same weights. A table for
//! each layout of decoders.

use super::naming::Naming;

/// Llama and the models in its layout.
pub(super) const LLAMA: Naming = Naming {
    layers: "model.layers.",
    outer: &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")],
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ],
    // Those of Mixtral, which Llama does not have.
    special: &[("ffn_gate_inp", "block_sparse_moe.gate")],
    recurrent: &[],
    experts: &[
        ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
    ],
};

/// The experts of most families.
const EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
    ("ffn_up_exps", "mlp.experts.*.up_proj"),
    ("ffn_down_exps", "mlp.experts.*.down_proj"),
];

/// Qwen 2 and 3 with experts.
pub(super) const QWEN_MOE: Naming = Naming {
    special: &[
        ("ffn_gate_inp", "mlp.gate"),
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Gated delta nets between layers of gated attention, with or without experts (Qwen3-Next,
/// Qwen3.5). The norm before the MLP has the name of one after attention.
pub(super) const DELTA_NET: Naming = Naming {
    special: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        // Older files of Qwen3-Next have all projections in one tensor.
        ("ssm_in", "linear_attn.in_proj_qkvz"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a", "linear_attn.A_log"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
        ("ffn_gate_inp", "mlp.gate"),
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// The Mamba-2 layers of most families.
const MAMBA: &[(&str, &str)] = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_dt.bias", "mamba.dt_bias"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

/// Mamba-2 layers between layers of attention, and experts beside a shared one, or dense MLPs
/// (Granite 4).
pub(super) const GRANITE_HYBRID: Naming = Naming {
    recurrent: MAMBA,
    special: &[
        ("ffn_gate_inp", "block_sparse_moe.router.layer"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "shared_mlp.output_linear"),
        ("ffn_down", "shared_mlp.output_linear"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Attention and a Mamba-2 layer beside each other (Falcon-H1). The converter writes the name of
/// the norm before the MLP without a suffix.
pub(super) const FALCON_H1: Naming = Naming {
    recurrent: MAMBA,
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.final_layernorm"),
        ("output", "lm_head"),
    ],
    special: &[
        ("ffn_norm", "pre_ff_layernorm.weight"),
        ("ffn_norm.weight", "pre_ff_layernorm.weight"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
    ],
    ..LLAMA
};

/// Experts beside a shared one, in all layers or every second one (Llama 4).
pub(super) const LLAMA4: Naming = Naming {
    special: &[
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ffn_gate_inp", "feed_forward.router"),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Hunyuan V1, with or without experts.
pub(super) const HUNYUAN: Naming = Naming {
    special: &[
        ("attn_q_norm", "self_attn.query_layernorm"),
        ("attn_k_norm", "self_attn.key_layernorm"),
        ("ffn_gate_inp", "mlp.gate.wg"),
        ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
        ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Layers of one branch each: a Mamba-2 layer, attention, an MLP or experts (Nemotron-H).
pub(super) const NEMOTRON_H: Naming = Naming {
    layers: "backbone.layers.",
    outer: &[
        ("token_embd", "backbone.embeddings"),
        ("output_norm", "backbone.norm_f"),
        ("output", "lm_head"),
    ],
    inner: &[
        ("attn_norm", "norm"),
        ("attn_q", "mixer.q_proj"),
        ("attn_k", "mixer.k_proj"),
        ("attn_v", "mixer.v_proj"),
        ("attn_output", "mixer.o_proj"),
        ("ssm_in", "mixer.in_proj"),
        ("ssm_conv1d", "mixer.conv1d"),
        ("ssm_a", "mixer.A_log"),
        ("ssm_d", "mixer.D"),
        ("ssm_dt.bias", "mixer.dt_bias"),
        ("ssm_norm", "mixer.norm"),
        ("ssm_out", "mixer.out_proj"),
        ("ffn_up", "mixer.up_proj"),
        ("ffn_down", "mixer.down_proj"),
        ("ffn_gate_inp", "mixer.gate"),
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
    ],
    special: &[],
    recurrent: &[],
    experts: &[("ffn_up_exps", "mixer.experts.*.up_proj"), ("ffn_down_exps", "mixer.experts.*.down_proj")],
};

/// GLM-4.5 and its successors, whose norm before the MLP has the name of one after attention.
pub(super) const GLM4_MOE: Naming = Naming {
    special: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_gate_inp", "mlp.gate"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Experts beside shared ones, chosen with a bias (dots.llm1).
pub(super) const DOTS1: Naming = Naming {
    special: &[
        ("ffn_gate_inp", "mlp.gate"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Latent attention, and experts beside shared ones (DeepSeek V2 and V3, GLM-4.7-Flash). Newer
/// files have the projections of latents to keys and to values in a tensor each.
pub(super) const DEEPSEEK2: Naming = Naming {
    special: &[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
        ("attn_k_b", "self_attn.k_b_proj"),
        ("attn_v_b", "self_attn.v_b_proj"),
        ("ffn_gate_inp", "mlp.gate"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Latent attention in some layers and Kimi Delta Attention in the others (Kimi Linear).
pub(super) const KIMI_LINEAR: Naming = Naming {
    recurrent: &[
        ("ssm_conv1d_q", "self_attn.q_conv1d"),
        ("ssm_conv1d_k", "self_attn.k_conv1d"),
        ("ssm_conv1d_v", "self_attn.v_conv1d"),
        ("ssm_f_a", "self_attn.f_a_proj"),
        ("ssm_f_b", "self_attn.f_b_proj"),
        ("ssm_g_a", "self_attn.g_a_proj"),
        ("ssm_g_b", "self_attn.g_b_proj"),
        ("ssm_beta", "self_attn.b_proj"),
        ("ssm_a", "self_attn.A_log"),
        ("ssm_dt.bias", "self_attn.dt_bias"),
        ("ssm_norm", "self_attn.o_norm"),
    ],
    special: &[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
        ("attn_k_b", "self_attn.k_b_proj"),
        ("attn_v_b", "self_attn.v_b_proj"),
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
        ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
        ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
    ],
    ..LLAMA
};

/// Latent attention with what chooses keys in long contexts (GLM-5), which is not loaded.
pub(super) const GLM_DSA: Naming = Naming {
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("indexer.k_norm", "self_attn.indexer.k_norm"),
        ("indexer.proj", "self_attn.indexer.weights_proj"),
        ("indexer.attn_k", "self_attn.indexer.wk"),
        ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ],
    ..DEEPSEEK2
};

/// Latent attention without experts, and with one projection of latents (MiniCPM3).
pub(super) const MINICPM3: Naming = Naming {
    special: &[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
    ],
    ..LLAMA
};

/// ERNIE 4.5 with experts.
pub(super) const ERNIE4_5_MOE: Naming = Naming {
    special: &[
        ("ffn_gate_inp", "mlp.gate"),
        ("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// MiniMax M2. Its experts have the names of Mixtral.
pub(super) const MINIMAX_M2: Naming = Naming {
    special: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
    ],
    ..LLAMA
};

/// Granite 3 with experts.
pub(super) const GRANITE_MOE: Naming =
    Naming { special: &[("ffn_gate_inp", "block_sparse_moe.router.layer")], experts: EXPERTS, ..LLAMA };

/// gpt-oss, whose norm before the MLP has the name of one after attention.
pub(super) const GPT_OSS: Naming = Naming {
    special: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_gate_inp", "mlp.router"),
        ("attn_sinks.weight", "self_attn.sinks"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Seed-OSS, whose norm before the MLP has the name of one after attention.
pub(super) const SEED_OSS: Naming =
    Naming { special: &[("post_attention_norm", "post_attention_layernorm")], ..LLAMA };

/// Norms around both branches, and fused gate and up (GLM-4-0414).
pub(super) const GLM4: Naming = Naming {
    special: &[
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
        ("ffn_up", "mlp.gate_up_proj"),
    ],
    ..LLAMA
};

/// InternLM2.
pub(super) const INTERNLM2: Naming = Naming {
    outer: &[("token_embd", "model.tok_embeddings"), ("output_norm", "model.norm"), ("output", "output")],
    special: &[
        ("attn_norm", "attention_norm"),
        ("attn_output", "attention.wo"),
        ("ffn_norm", "ffn_norm"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
    ],
    ..LLAMA
};

/// GLM-4 in the layout of transformers, with gate and up in one tensor.
pub(super) const GLM: Naming = Naming { special: &[("ffn_up", "mlp.gate_up_proj")], ..LLAMA };

/// Short convolutions, with or without experts (LFM2). The norm at the end has the name of one
/// after the embedding.
pub(super) const LFM2: Naming = Naming {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("token_embd_norm", "model.embedding_norm"),
        ("output", "lm_head"),
    ],
    special: &[
        ("attn_norm", "operator_norm"),
        ("ffn_norm", "ffn_norm"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("attn_output", "self_attn.out_proj"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.out_proj", "conv.out_proj"),
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b.bias", "feed_forward.expert_bias"),
    ],
    experts: &[
        ("ffn_gate_exps", "feed_forward.experts.*.w1"),
        ("ffn_up_exps", "feed_forward.experts.*.w3"),
        ("ffn_down_exps", "feed_forward.experts.*.w2"),
    ],
    ..LLAMA
};

/// One norm before both branches, and an MLP without a gate (Phi 2).
pub(super) const PHI2: Naming = Naming {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.final_layernorm"),
        ("output", "lm_head"),
    ],
    special: &[("attn_output", "self_attn.dense"), ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")],
    ..LLAMA
};

/// Norms before and after both branches (Gemma 2 and 3).
pub(super) const SANDWICH: Naming = Naming {
    special: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    ..LLAMA
};

/// Norms before and after both branches, a number and an embedding for each layer, and experts
/// beside a dense MLP (Gemma 4).
pub(super) const GEMMA4: Naming = Naming {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
        ("per_layer_token_embd", "model.embed_tokens_per_layer"),
        ("per_layer_model_proj", "model.per_layer_model_projection"),
        ("per_layer_proj_norm", "model.per_layer_projection_norm"),
    ],
    special: &[
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ("ffn_gate_inp.scale", "router.scale"),
        ("ffn_gate_inp", "router.proj"),
        ("ffn_down_exps.scale", "router.per_expert_scale"),
        ("layer_output_scale.weight", "layer_scalar"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

/// Norms after both branches (OLMo 2, EXAONE 4).
pub(super) const OLMO2: Naming = Naming {
    special: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    ..LLAMA
};

/// Fused projections (Phi 3).
pub(super) const PHI3: Naming =
    Naming { special: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")], ..LLAMA };

/// An MLP without a gate (StarCoder 2).
pub(super) const STARCODER2: Naming =
    Naming { special: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")], ..LLAMA };

/// ChatGLM2 and its successors, with fused query, key and value, and fused gate and up.
pub(super) const CHATGLM: Naming = Naming {
    layers: "transformer.encoder.layers.",
    outer: &[
        ("token_embd", "transformer.embedding.word_embeddings"),
        ("output_norm", "transformer.encoder.final_layernorm"),
        ("output", "transformer.output_layer"),
    ],
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attention.query_key_value"),
        // Files of models in the layout of transformers have three tensors.
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ],
    special: &[],
    recurrent: &[],
    experts: &[],
};

/// Norms with names of their own (Apertus).
pub(super) const APERTUS: Naming = Naming {
    special: &[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")],
    ..LLAMA
};

/// K-EXAONE, whose norms come before both branches.
pub(super) const EXAONE_MOE: Naming = Naming {
    special: &[
        ("ffn_gate_inp", "mlp.gate"),
        ("exp_probs_b.bias", "mlp.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    experts: EXPERTS,
    ..LLAMA
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated() {
        for (from, to) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("blk.3.attn_sinks.weight", "model.layers.3.attn_sinks.weight"),
            ("output.scale.weight", "output.scale.weight"),
        ] {
            assert_eq!(LLAMA.translate(from), to);
        }
        let bias = GLM4_MOE.translate("blk.2.exp_probs_b.bias");
        assert_eq!(bias, "model.layers.2.mlp.gate.e_score_correction_bias");
        for name in ["model.layers.12.mlp.down_proj.bias", "model.norm.weight", "lm_head.weight"] {
            assert_eq!(LLAMA.translate(&LLAMA.reverse(name).unwrap()), name);
        }
        for unknown in ["model.layers.1.model.norm.weight", "model.layers.x.mlp.down_proj.weight", "output"] {
            assert_eq!(LLAMA.reverse(unknown), None, "{unknown}");
        }
        let matrix = "model.layers.2.mlp.experts.11.up_proj.weight";
        assert_eq!(GLM4_MOE.reverse_expert(matrix), Some(("blk.2.ffn_up_exps.weight".to_owned(), 11)));
        assert_eq!(GLM4_MOE.reverse_expert("model.layers.2.mlp.up_proj.weight"), None);
        assert_eq!(
            GLM4_MOE.reverse("model.layers.2.mlp.gate.e_score_correction_bias").unwrap(),
            "blk.2.exp_probs_b.bias"
        );
        // Llama's norm before the MLP has this name, but Gemma's has another.
        let norm = "model.layers.1.post_attention_layernorm.weight";
        assert_eq!(SANDWICH.reverse(norm).unwrap(), "blk.1.post_attention_norm.weight");
        for norm in ["blk.1.ffn_norm", "blk.1.ffn_norm.weight"] {
            assert_eq!(FALCON_H1.translate(norm), "model.layers.1.pre_ff_layernorm.weight");
        }
        let qkv = CHATGLM.translate("blk.1.attn_qkv.bias");
        assert_eq!(qkv, "transformer.encoder.layers.1.self_attention.query_key_value.bias");
    }
}
