"""The test cases of mixtures of experts, some of them with latent attention."""

import torch

from bases import LLAMA, PLAIN, YARN, case, ropes

MOE = dict(
    LLAMA, moe_intermediate_size=8, num_experts=6, num_experts_per_tok=2, intermediate_size=20
)
QWEN3_MOE = dict(MOE, model_type="qwen3_moe", head_dim=8, rms_norm_eps=1e-6)
case(
    "qwen3_moe",
    dict(QWEN3_MOE, norm_topk_prob=True),
    lengths=(27, 32),
    mutants=[dict(norm_topk_prob=False), dict(num_experts_per_tok=1), dict(num_experts_per_tok=3)],
)
case(
    "qwen3_moe_sparse",
    dict(
        QWEN3_MOE, num_hidden_layers=3, mlp_only_layers=[0], num_experts_per_tok=3,
        attention_bias=True, num_experts=5, use_sliding_window=True, sliding_window=10,
    ),
    lengths=(25, 30),
    mutants=[dict(norm_topk_prob=True), dict(sliding_window=9), dict(num_experts_per_tok=2)],
)  # fmt: skip
case(
    "qwen3_moe_stacked",
    dict(QWEN3_MOE, norm_topk_prob=True, decoder_sparse_step=2, num_key_value_heads=4),
    lengths=(24, 31),
    stacked=True,
)
MIXTRAL = dict(
    LLAMA, model_type="mixtral", num_local_experts=6, num_experts_per_tok=2, intermediate_size=8
)
case("mixtral", MIXTRAL, lengths=(26, 31), mutants=[dict(num_experts_per_tok=3)])
case(
    "mixtral_sliding",
    dict(MIXTRAL, sliding_window=9, num_experts_per_tok=3, vocab_size=53),
    lengths=(30, 24),
    mutants=[dict(sliding_window=8), dict(sliding_window=None)],
)
case(
    "mixtral_one_expert",
    dict(MIXTRAL, num_experts_per_tok=1, head_dim=16, num_local_experts=4),
    lengths=(28, 33),
    mutants=[dict(num_experts_per_tok=2)],
)
QWEN2_MOE = dict(
    MOE, model_type="qwen2_moe", shared_expert_intermediate_size=12, rms_norm_eps=1e-6, num_experts=5
)
case(
    "qwen2_moe",
    QWEN2_MOE,
    lengths=(29, 24),
    mutants=[dict(norm_topk_prob=True), dict(num_experts_per_tok=3)],
)
case(
    "qwen2_moe_normed",
    dict(QWEN2_MOE, norm_topk_prob=True, qkv_bias=False, decoder_sparse_step=2, vocab_size=67),
    lengths=(27, 34),
    mutants=[dict(norm_topk_prob=False)],
)
case(
    "qwen2_moe_sliding",
    dict(
        QWEN2_MOE, use_sliding_window=True, sliding_window=9, max_window_layers=2,
        num_hidden_layers=3, mlp_only_layers=[2],
    ),
    lengths=(30, 26),
    mutants=[dict(sliding_window=8), dict(layer_types=["sliding_attention"] * 3)],
)  # fmt: skip
GLM4_MOE = dict(
    MOE, model_type="glm4_moe", head_dim=8, n_routed_experts=6, num_hidden_layers=2,
    n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
    norm_topk_prob=True,
)  # fmt: skip
del GLM4_MOE["num_experts"]
case(
    "glm4_moe",
    dict(GLM4_MOE, use_qk_norm=True),
    lengths=(28, 33),
    mutants=[dict(routed_scaling_factor=1.0), ropes({}, partial_rotary_factor=1.0)],
)
case(
    "glm4_moe_groups",
    dict(
        GLM4_MOE, n_routed_experts=8, n_group=4, topk_group=2, attention_bias=True,
        num_experts_per_tok=3, moe_intermediate_size=6, first_k_dense_replace=0,
    ),
    lengths=(25, 30),
    mutants=[dict(n_group=1, topk_group=1), dict(topk_group=3)],
)  # fmt: skip
case(
    "glm4_moe_raw",
    dict(GLM4_MOE, norm_topk_prob=False, n_shared_experts=2, num_key_value_heads=1),
    lengths=(31, 24),
    mutants=[dict(norm_topk_prob=True)],
)
# Latent attention. The sizes of its parts differ, so that none can stand for another.
LATENT = dict(
    MOE, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=10,
    qk_rope_head_dim=8, v_head_dim=6, n_shared_experts=1, first_k_dense_replace=1,
    n_routed_experts=6, rms_norm_eps=1e-5,
)  # fmt: skip
del LATENT["num_experts"]
LATENT_YARN = dict(YARN, mscale=0.7, mscale_all_dim=0.9)
DEEPSEEK_V2 = dict(LATENT, model_type="deepseek_v2")
case(
    "deepseek_v2",
    dict(DEEPSEEK_V2, routed_scaling_factor=1.5, n_shared_experts=2),
    lengths=(28, 33),
    mutants=[dict(routed_scaling_factor=1.0), dict(num_experts_per_tok=3)],
)
case(
    "deepseek_v2_lite",
    dict(
        DEEPSEEK_V2, q_lora_rank=None, max_position_embeddings=96, rope_parameters=LATENT_YARN,
        v_head_dim=12, vocab_size=67,
    ),
    lengths=(25, 30),
    mutants=[PLAIN, ropes(LATENT_YARN, mscale=0.9), ropes(LATENT_YARN, mscale_all_dim=0.7)],
)  # fmt: skip
case(
    "deepseek_v2_groups",
    dict(
        DEEPSEEK_V2, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3,
        topk_method="group_limited_greedy", moe_intermediate_size=6, first_k_dense_replace=0,
    ),
    lengths=(31, 24),
    mutants=[dict(topk_method="greedy"), dict(topk_group=3)],
)  # fmt: skip
DEEPSEEK_V3 = dict(
    LATENT, model_type="deepseek_v3", routed_scaling_factor=1.5, n_group=1, topk_group=1,
    norm_topk_prob=True,
)  # fmt: skip
case(
    "deepseek_v3",
    dict(
        DEEPSEEK_V3, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3,
        moe_intermediate_size=6,
    ),
    lengths=(29, 24),
    mutants=[dict(n_group=1, topk_group=1), dict(topk_group=3), dict(rope_interleave=False)],
)  # fmt: skip
case(
    "deepseek_v3_yarn",
    dict(
        DEEPSEEK_V3, max_position_embeddings=96, rope_parameters=LATENT_YARN, v_head_dim=12,
        first_k_dense_replace=0, norm_topk_prob=False,
    ),
    lengths=(27, 32),
    mutants=[PLAIN, ropes(LATENT_YARN, mscale_all_dim=0.7), dict(norm_topk_prob=True)],
)  # fmt: skip
case(
    "deepseek_v3_half",
    dict(DEEPSEEK_V3, rope_interleave=False, q_lora_rank=None, n_shared_experts=2),
    lengths=(26, 31),
    mutants=[dict(rope_interleave=True), dict(routed_scaling_factor=1.0)],
)
GRANITE_MOE = dict(
    LLAMA, model_type="granitemoe", num_local_experts=6, num_experts_per_tok=2, intermediate_size=8,
    attention_multiplier=0.3,
)  # fmt: skip
case(
    "granitemoe",
    dict(
        GRANITE_MOE, embedding_multiplier=12.0, residual_multiplier=0.5, logits_scaling=2.0,
    ),
    lengths=(27, 32),
    mutants=[
        dict(embedding_multiplier=1.0),
        dict(residual_multiplier=1.0),
        dict(logits_scaling=1.0),
        dict(attention_multiplier=0.4),
    ],
)  # fmt: skip
case(
    "granitemoe_bias",
    dict(GRANITE_MOE, attention_bias=True, num_experts_per_tok=3, num_key_value_heads=4),
    lengths=(25, 30),
    mutants=[dict(num_experts_per_tok=2)],
)
case(
    "granitemoe_one_expert",
    dict(GRANITE_MOE, num_experts_per_tok=1, num_local_experts=3, residual_multiplier=0.25),
    lengths=(28, 24),
    mutants=[dict(num_experts_per_tok=2), dict(residual_multiplier=0.5)],
)
GPT_OSS = dict(
    LLAMA, model_type="gpt_oss", num_local_experts=5, num_experts_per_tok=2, intermediate_size=12, head_dim=8,
    sliding_window=9, vocab_size=53, swiglu_limit=0.8,
    rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=2.0, beta_slow=0.5, truncate=False,
        original_max_position_embeddings=16,
    ),
)  # fmt: skip
case(
    "gpt_oss",
    GPT_OSS,
    lengths=(30, 37),
    mutants=[
        dict(sliding_window=8),
        dict(num_experts_per_tok=3),
        dict(swiglu_limit=0.9),
        ropes({}, truncate=True),
        dict(layer_types=["full_attention", "sliding_attention"]),
    ],
)
case(
    "gpt_oss_one_expert",
    dict(GPT_OSS, num_experts_per_tok=1, num_local_experts=3, num_key_value_heads=1, head_dim=16, swiglu_limit=7.0),
    lengths=(27, 33),
    mutants=[dict(num_experts_per_tok=2), dict(swiglu_alpha=1.6)],
)
case(
    "gpt_oss_layers",
    dict(
        GPT_OSS, num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        num_local_experts=4, num_experts_per_tok=4, attention_bias=False, tie_word_embeddings=True,
        intermediate_size=8,
    ),
    lengths=(28, 31),
    mutants=[dict(sliding_window=10), dict(num_experts_per_tok=3)],
)  # fmt: skip
case(
    "gpt_oss_bf16",
    dict(GPT_OSS, num_local_experts=4, hidden_size=64),
    lengths=(29, 26),
    mutants=[dict(swiglu_limit=0.9)],
    dtype=torch.bfloat16,
)
case(
    "gpt_oss_mxfp4",
    dict(GPT_OSS, intermediate_size=32, num_local_experts=4, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    lengths=(31, 25),
    mutants=[dict(swiglu_limit=0.9)],
    layout="mxfp4",
)
case(
    "gpt_oss_mxfp4_wide",
    dict(GPT_OSS, hidden_size=64, intermediate_size=64, num_local_experts=3, num_hidden_layers=1),
    lengths=(26, 33),
    mutants=[dict(num_experts_per_tok=1)],
    layout="mxfp4",
)
MINIMAX_M2 = dict(
    LLAMA, model_type="minimax_m2", num_local_experts=6, num_experts_per_tok=2, intermediate_size=8, head_dim=16,
    vocab_size=53, rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5),
)  # fmt: skip
case(
    "minimax_m2",
    MINIMAX_M2,
    lengths=(29, 24),
    mutants=[dict(num_experts_per_tok=3), ropes({}, partial_rotary_factor=1.0)],
)
case(
    "minimax_m2_mqa",
    dict(MINIMAX_M2, num_key_value_heads=1, num_local_experts=5, num_experts_per_tok=3),
    lengths=(31, 26),
    mutants=[dict(num_experts_per_tok=2)],
)
case(
    "minimax_m2_mha",
    dict(MINIMAX_M2, num_key_value_heads=4, head_dim=8, num_hidden_layers=3, num_local_experts=4, num_experts_per_tok=1),
    lengths=(28, 33),
    mutants=[dict(num_experts_per_tok=2)],
)
