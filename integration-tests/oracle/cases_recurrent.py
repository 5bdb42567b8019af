"""The test cases of models with recurrent layers."""

from typing import Any

import bases
from bases import LLAMA, Config, ropes
from cases_images import EYES, IMAGE_IDS, with_images

# A recurrence amplifies rounding where a query or a key is short. Prompts without such ones are
# searched for.
NOISE = 7e-6


def case(name: str, config: Config, **kw: Any) -> None:
    bases.case(name, config, noise=NOISE, **kw)


DELTA = dict(
    LLAMA, head_dim=8, intermediate_size=28, vocab_size=53, num_hidden_layers=4,
    full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=6,
    linear_num_key_heads=2, linear_num_value_heads=4, rms_norm_eps=1e-3,
    **ropes(dict(rope_type="default"), rope_theta=500.0, partial_rotary_factor=0.5),
)  # fmt: skip
PARTIAL = [ropes(DELTA["rope_parameters"], partial_rotary_factor=p) for p in (0.25, 1.0)]
EXPERTS = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=8
)
QWEN3_NEXT = dict(DELTA, model_type="qwen3_next", **EXPERTS)
case(
    "qwen3_next",
    dict(QWEN3_NEXT, num_hidden_layers=3, full_attention_interval=3),
    lengths=(25, 29),
    mutants=[*PARTIAL, dict(norm_topk_prob=False), dict(num_experts_per_tok=3), dict(hidden_act="gelu")],
)
case(
    "qwen3_next_heads",
    dict(
        QWEN3_NEXT, num_hidden_layers=2, layer_types=["full_attention", "linear_attention"],
        linear_num_key_heads=3, linear_num_value_heads=3, linear_conv_kernel_dim=3, norm_topk_prob=False,
        mlp_only_layers=[0], linear_key_head_dim=5,
    ),
    lengths=(28, 24),
    mutants=[*PARTIAL, dict(norm_topk_prob=True), dict(hidden_act="relu")],
)  # fmt: skip
case(
    "qwen3_next_grouped",
    dict(
        QWEN3_NEXT, num_hidden_layers=2, full_attention_interval=2, decoder_sparse_step=2,
        linear_num_key_heads=1, num_attention_heads=2, num_key_value_heads=1, linear_conv_kernel_dim=2,
    ),
    lengths=(24, 29),
    mutants=[*PARTIAL, dict(num_experts_per_tok=1)],
)  # fmt: skip
QWEN3_5 = dict(DELTA, model_type="qwen3_5_text")
case("qwen3_5_text", QWEN3_5, lengths=(26, 30), mutants=[*PARTIAL, dict(hidden_act="gelu")])
case(
    "qwen3_5_text_tied",
    dict(QWEN3_5, num_hidden_layers=2, tie_word_embeddings=True, full_attention_interval=2,
         linear_num_key_heads=4, linear_conv_kernel_dim=3),
    lengths=(27, 25),
    mutants=[*PARTIAL, dict(hidden_act="relu")],
)  # fmt: skip
case(
    "qwen3_5",
    with_images(
        "qwen3_5",
        dict(QWEN3_5, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
             **ropes(dict(DELTA["rope_parameters"], mrope_section=[1, 1, 0], mrope_interleaved=True))),
        dict(EYES, num_position_embeddings=16), **IMAGE_IDS,
    ),
    lengths=(29, 25),
)  # fmt: skip
QWEN3_5_MOE = dict(DELTA, model_type="qwen3_5_moe_text", num_hidden_layers=2, full_attention_interval=2, **EXPERTS)
del QWEN3_5_MOE["intermediate_size"]
case("qwen3_5_moe_text", QWEN3_5_MOE, lengths=(29, 24), mutants=[*PARTIAL, dict(num_experts_per_tok=3)])
case(
    "qwen3_5_moe_text_last",
    dict(QWEN3_5_MOE, layer_types=["full_attention", "linear_attention"], num_experts_per_tok=3,
         linear_num_key_heads=4, linear_key_head_dim=4),
    lengths=(24, 30),
    mutants=[*PARTIAL, dict(hidden_act="gelu")],
)  # fmt: skip
case(
    "qwen3_5_moe",
    with_images(
        "qwen3_5_moe",
        dict(QWEN3_5_MOE, **ropes(dict(DELTA["rope_parameters"], mrope_section=[1, 1, 0], mrope_interleaved=True))),
        dict(EYES, num_position_embeddings=16), **IMAGE_IDS,
    ),
    lengths=(30, 27),
)  # fmt: skip
LFM2 = dict(
    LLAMA, model_type="lfm2", norm_eps=1e-3, num_hidden_layers=3, full_attn_idxs=[1], conv_L_cache=3,
    intermediate_size=60, block_multiple_of=8, vocab_size=53,
    **ropes(dict(rope_type="default"), rope_theta=500.0),
)  # fmt: skip
del LFM2["rms_norm_eps"]
case("lfm2", LFM2, lengths=(25, 29), mutants=[ropes(LFM2["rope_parameters"], rope_theta=20.0)])
case(
    "lfm2_bias",
    dict(LFM2, conv_bias=True, num_hidden_layers=2, layer_types=["full_attention", "conv"], conv_L_cache=4,
         tie_word_embeddings=True, block_auto_adjust_ff_dim=False, intermediate_size=28),
    lengths=(28, 24),
    mutants=[ropes(LFM2["rope_parameters"], rope_theta=20.0)],
)  # fmt: skip
case(
    "lfm2_width",
    dict(LFM2, num_hidden_layers=2, full_attn_idxs=[1], conv_L_cache=2, block_ffn_dim_multiplier=0.7,
         block_multiple_of=6, num_key_value_heads=1),
    lengths=(27, 23),
    mutants=[ropes(LFM2["rope_parameters"], rope_theta=20.0)],
)  # fmt: skip
GRANITE = dict(
    LLAMA, model_type="granitemoehybrid", num_hidden_layers=3, vocab_size=53, intermediate_size=8,
    shared_intermediate_size=12, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-3,
    layer_types=["linear_attention", "full_attention", "linear_attention"], mamba_n_heads=8, mamba_d_state=6,
    mamba_n_groups=2, mamba_d_conv=4, mamba_expand=1, mamba_chunk_size=16, position_embedding_type="rope",
    embedding_multiplier=3.0, residual_multiplier=0.7, logits_scaling=0.5, attention_multiplier=0.3,
    **ropes(dict(rope_type="default"), rope_theta=500.0),
)  # fmt: skip
FACTORS = [
    dict(embedding_multiplier=1.0), dict(residual_multiplier=1.0), dict(logits_scaling=1.0),
    dict(attention_multiplier=1.0), dict(hidden_act="gelu"),
]  # fmt: skip
case(
    "granitemoehybrid",
    GRANITE,
    lengths=(25, 29),
    mutants=[*FACTORS, dict(num_experts_per_tok=3), dict(position_embedding_type=None)],
)
case(
    "granitemoehybrid_dense",
    dict(GRANITE, num_local_experts=0, position_embedding_type=None, num_hidden_layers=2, mamba_n_groups=1,
         layer_types=["linear_attention", "full_attention"], mamba_conv_bias=False, mamba_d_conv=3,
         shared_intermediate_size=28),
    lengths=(28, 24),
    mutants=[*FACTORS, dict(position_embedding_type="rope")],
)  # fmt: skip
# Bounds on time steps have no case: transformers applies them to prompts, but not to single tokens.
case(
    "granitemoehybrid_groups",
    dict(GRANITE, num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], mamba_n_groups=4,
         attention_bias=True),
    lengths=(27, 23),
    mutants=[*FACTORS, dict(num_experts_per_tok=1)],
)  # fmt: skip
FALCON_H1 = dict(
    LLAMA, model_type="falcon_h1", num_hidden_layers=2, vocab_size=53, intermediate_size=20, rms_norm_eps=1e-3,
    mamba_d_ssm=24, mamba_n_heads=6, mamba_d_head=4, mamba_n_groups=2, mamba_d_state=5, mamba_d_conv=4,
    mamba_chunk_size=16, projectors_bias=False, attention_bias=False, mlp_bias=False,
    embedding_multiplier=3.0, lm_head_multiplier=0.7, mlp_multipliers=[1.4, 0.6], key_multiplier=0.8,
    attention_in_multiplier=1.2, attention_out_multiplier=0.9, ssm_in_multiplier=1.3, ssm_out_multiplier=0.7,
    ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.7],
    **ropes(dict(rope_type="default"), rope_theta=500.0),
)  # fmt: skip
MULTIPLIERS = [
    dict(embedding_multiplier=1.0), dict(lm_head_multiplier=1.0), dict(mlp_multipliers=[1.0, 0.6]),
    dict(mlp_multipliers=[1.4, 1.0]), dict(key_multiplier=1.0), dict(attention_in_multiplier=1.0),
    dict(attention_out_multiplier=1.0), dict(ssm_in_multiplier=1.0), dict(ssm_out_multiplier=1.0),
    *(dict(ssm_multipliers=[1.0 if i == j else m for j, m in enumerate(FALCON_H1["ssm_multipliers"])])
      for i in range(5)),
    ropes(FALCON_H1["rope_parameters"], rope_theta=20.0),
]  # fmt: skip
case("falcon_h1", FALCON_H1, lengths=(25, 29), mutants=[*MULTIPLIERS, dict(hidden_act="gelu")])
case(
    "falcon_h1_norm",
    dict(FALCON_H1, mamba_rms_norm=True, mamba_n_groups=3, mamba_conv_bias=False, tie_word_embeddings=True,
         mamba_d_conv=3),
    lengths=(28, 24),
    mutants=[*MULTIPLIERS, dict(mamba_norm_before_gate=False)],
)  # fmt: skip
case(
    "falcon_h1_biases",
    dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=1, mamba_d_ssm=None,
         mamba_expand=1, mamba_n_heads=8, projectors_bias=True, attention_bias=True, mlp_bias=True,
         attention_in_multiplier=1.0, mlp_multipliers=[1.0, 0.6]),
    lengths=(27, 23),
    mutants=[dict(mamba_norm_before_gate=True), dict(key_multiplier=1.0), dict(ssm_out_multiplier=1.0),
             dict(attention_out_multiplier=1.0), dict(mlp_multipliers=[1.0, 1.0])],
)  # fmt: skip
NEMOTRON_H = dict(
    LLAMA, model_type="nemotron_h", vocab_size=53, intermediate_size=20, head_dim=8, layer_norm_epsilon=1e-3,
    layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"], mamba_num_heads=6,
    mamba_head_dim=4, ssm_state_size=5, n_groups=2, conv_kernel=4, chunk_size=16, time_step_min=1e-6,
)  # fmt: skip
del NEMOTRON_H["num_hidden_layers"], NEMOTRON_H["rms_norm_eps"]
case(
    "nemotron_h",
    NEMOTRON_H,
    lengths=(25, 29),
    mutants=[dict(mlp_hidden_act="silu"), dict(mamba_hidden_act="gelu")],
)
case(
    "nemotron_h_bias",
    dict(NEMOTRON_H, layers_block_type=["mlp", "linear_attention", "mlp", "full_attention"], mlp_bias=True,
         n_groups=3, use_conv_bias=False, conv_kernel=3, mlp_hidden_act="relu", num_key_value_heads=1),
    lengths=(28, 24),
    mutants=[dict(mlp_hidden_act="relu2")],
)  # fmt: skip
case(
    "nemotron_h_experts",
    dict(NEMOTRON_H, layers_block_type=["moe", "full_attention", "moe", "linear_attention"], n_routed_experts=6,
         num_experts_per_tok=2, moe_intermediate_size=6, moe_shared_expert_intermediate_size=8,
         routed_scaling_factor=1.5, n_group=2, topk_group=1),
    lengths=(27, 23),
    mutants=[dict(num_experts_per_tok=3), dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0),
             dict(topk_group=2), dict(mlp_hidden_act="relu")],
)  # fmt: skip
MAMBA2 = dict(
    model_type="mamba2", vocab_size=61, hidden_size=32, num_hidden_layers=3, num_heads=8, head_dim=8, state_size=6,
    expand=2, conv_kernel=4, n_groups=2, chunk_size=16, use_bias=False, use_conv_bias=True, layer_norm_epsilon=1e-3,
    tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
case("mamba2", MAMBA2, lengths=(25, 29), mutants=[dict(hidden_act="gelu")])
case(
    "mamba2_tied",
    dict(MAMBA2, tie_word_embeddings=True, n_groups=1, use_conv_bias=False, conv_kernel=3, vocab_size=53),
    lengths=(28, 24),
    mutants=[dict(hidden_act="relu")],
)
case(
    "mamba2_groups",
    dict(MAMBA2, n_groups=4, num_heads=4, expand=1, num_hidden_layers=2, state_size=5),
    lengths=(27, 23),
    mutants=[dict(time_step_limit=[0.1, 0.3])],
)

# Kimi Delta Attention, and latent attention without a rotation.
KIMI = dict(
    LLAMA, model_type="kimi_linear", num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=12, qk_nope_head_dim=6,
    qk_rope_head_dim=4, v_head_dim=5, intermediate_size=20, vocab_size=53, num_hidden_layers=2, num_experts=4,
    num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=6, moe_renormalize=True,
    num_expert_group=1, topk_group=1, routed_scaling_factor=1.5, pad_token_id=0, rms_norm_eps=1e-3,
    linear_attn_config=dict(head_dim=6, num_heads=4, short_conv_kernel_size=4, full_attn_layers=[2], kda_layers=[1]),
)  # fmt: skip
del KIMI["max_position_embeddings"]
KIMI["model_max_length"] = 64
case(
    "kimi_linear",
    KIMI,
    lengths=(25, 29),
    mutants=[dict(routed_scaling_factor=1.0), dict(moe_renormalize=False), dict(hidden_act="gelu")],
    renamed=("0.block_sparse_moe.", "0.mlp."),  # transformers writes experts' names for dense layers
)
case(
    "kimi_linear_ranks",
    dict(
        KIMI, q_lora_rank=10, num_experts_per_token=3, num_shared_experts=2, moe_renormalize=False, first_k_dense_replace=0,
        linear_attn_config=dict(
            head_dim=5, num_heads=2, short_conv_kernel_size=3, full_attn_layers=[1], kda_layers=[2]
        ),
    ),
    lengths=(28, 24),
    mutants=[dict(moe_renormalize=True)],
)  # fmt: skip
case(
    "kimi_linear_groups",
    dict(
        KIMI, num_hidden_layers=3, num_experts=8, num_expert_group=4, topk_group=2, num_experts_per_token=2,
        moe_intermediate_size=4, tie_word_embeddings=True, hidden_size=24,
        linear_attn_config=dict(
            head_dim=4, num_heads=3, short_conv_kernel_size=2, full_attn_layers=[3], kda_layers=[1, 2]
        ),
    ),
    lengths=(24, 29),
    mutants=[dict(topk_group=3), dict(topk_group=4)],
)  # fmt: skip
