"""The checkpoints of the test cases: configurations, prompt lengths, and changes that must be
visible."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from old_configs import Config, v4, v4_oldest, v4_type, v4_unused_window

Spec = dict[str, Any]  # one case: the arguments of `case`
Lengths = tuple[int, ...]

LLAMA = dict(
    model_type="llama", vocab_size=61, hidden_size=32, intermediate_size=44,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    rms_norm_eps=1e-5, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    tie_word_embeddings=False,
)  # fmt: skip
# One set of weights under several position encodings.
ROPE = dict(LLAMA, head_dim=16, num_key_value_heads=1, intermediate_size=28, vocab_size=53)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=24)
GLM = dict(
    model_type="glm", vocab_size=61, hidden_size=32, intermediate_size=36,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=64, rms_norm_eps=1e-5, attention_bias=True,
    pad_token_id=0, eos_token_id=2, tie_word_embeddings=False,
)  # fmt: skip

CASES: dict[str, Spec] = {}


def case(name: str, config: Config, **kw: Any) -> None:
    CASES[name] = dict(name=name, config=config, **kw)


def llama(
    name: str, lengths: Lengths, mutants: Sequence[Config] = (), base: Config = LLAMA, **over: Any
) -> None:
    kw = {k: over.pop(k) for k in ("dtype", "shards", "weights") if k in over}
    case(name, dict(base, **over), lengths=lengths, mutants=mutants, **kw)


def rope(
    name: str, lengths: Lengths, params: Config, mutants: Sequence[Config] = (), **over: Any
) -> None:
    llama(name, lengths, mutants, base=ROPE, weights="rope", rope_parameters=params, **over)


def ropes(params: Config, **over: Any) -> Config:
    """Returns a change of config.json's rope_parameters. Fields that are not given keep the value
    of the case."""
    return dict(rope_parameters={**params, **over})


PLAIN = dict(rope_parameters=dict(rope_type="default"))


def yarn(name: str, lengths: Lengths, mutants: Sequence[Config], **over: Any) -> None:
    params = dict(YARN, **over)
    mutants = [PLAIN, *(ropes(params, **m) for m in mutants)]
    rope(name, lengths, params, mutants, max_position_embeddings=96)


# Attention shapes and switches.
llama("llama_gqa", (29, 24), hidden_size=48, num_attention_heads=6, intermediate_size=36)
llama("llama_tied", (33, 25), tie_word_embeddings=True, intermediate_size=80, vocab_size=97)
llama("llama_mha", (24, 38), num_key_value_heads=4, num_hidden_layers=3, intermediate_size=28)
llama("llama_mqa", (32, 27), num_key_value_heads=1, num_attention_heads=8, vocab_size=97)
llama("llama_bias", (31, 26), attention_bias=True, mlp_bias=True)
llama("llama_head_dim", (30, 39), head_dim=16, vocab_size=59, intermediate_size=36)

# Files.
llama("llama_sharded", (28, 35), shards="50KB")
HALF = dict(hidden_size=48, num_attention_heads=6, intermediate_size=76, vocab_size=97)
llama("llama_bf16", (29, 24), dtype=torch.bfloat16, **HALF)
llama("llama_f16", (26, 33), dtype=torch.float16, **HALF)

# Position encodings.
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
rope("llama_linear", (29, 36), LINEAR, [PLAIN])
DYNAMIC = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
# Below max_position_embeddings to the end; beyond it; crossing it while decoding.
rope("llama_dynamic", (22, 45, 34), DYNAMIC, [PLAIN], max_position_embeddings=40)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
    high_freq_factor=4.0, original_max_position_embeddings=32,
)  # fmt: skip
rope("llama_llama3", (41, 27), LLAMA3, [PLAIN, ropes(LLAMA3, rope_type="linear")])
yarn("llama_yarn", (37, 25), [dict(attention_factor=1.0)])
yarn(
    "llama_yarn_attention_factor", (40, 24), [dict(attention_factor=None)],
    attention_factor=1.3, beta_fast=2.0, beta_slow=0.5,
)  # fmt: skip
yarn("llama_yarn_no_truncate", (34, 29), [dict(truncate=True)], beta_fast=2.0, truncate=False)
yarn("llama_yarn_mscale", (35, 26), [dict(mscale=None)], mscale=1.0, mscale_all_dim=0.5)

# Other families.
QWEN = dict(LLAMA, max_window_layers=1)
case("qwen2", dict(QWEN, model_type="qwen2", rms_norm_eps=1e-6), lengths=(29, 24))
case(
    "qwen2_sliding",
    dict(
        QWEN, model_type="qwen2", use_sliding_window=True, sliding_window=9,
        num_hidden_layers=3, intermediate_size=28,
    ),
    lengths=(30, 37),
    mutants=[
        dict(sliding_window=8),
        dict(sliding_window=10),
        dict(layer_types=["full_attention"] * 3),
        dict(layer_types=["sliding_attention"] * 3),
    ],
)  # fmt: skip
case(
    "qwen3",
    dict(QWEN, model_type="qwen3", head_dim=16, rms_norm_eps=1e-6, intermediate_size=36),
    lengths=(27, 32),
)
case(
    "mistral_sliding",
    dict(LLAMA, model_type="mistral", sliding_window=11, vocab_size=67),
    lengths=(36, 25),
    mutants=[dict(sliding_window=w) for w in (None, 10, 12)],
)
case("glm", GLM, lengths=(28, 33), mutants=[ropes({}, partial_rotary_factor=1.0)])

# Mixtures of experts.
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

# Layouts of remote code, from the same models under other names.
case(
    "baichuan_7b",
    dict(LLAMA, num_key_value_heads=4, rms_norm_eps=1e-6, vocab_size=64, pad_token_id=0),
    lengths=(31, 24),
    layout="baichuan",
)
case(
    "chatglm2",
    dict(GLM, hidden_size=48, num_attention_heads=6, head_dim=8, vocab_size=65),
    lengths=(25, 34),
    layout="chatglm",
)
case(
    "glm4",
    dict(GLM, head_dim=8, rms_norm_eps=1.5625e-7, intermediate_size=44, **ropes({}, rope_theta=5e6)),
    lengths=(35, 28),
    mutants=[ropes({}, rope_theta=1e4), dict(rms_norm_eps=1e-5)],
    layout="chatglm",
    rope_ratio=500,
)

# Gemma.
GEMMA = dict(
    LLAMA, model_type="gemma", head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-3, pad_token_id=0,
    intermediate_size=28, vocab_size=53,
)  # fmt: skip
case("gemma", GEMMA, lengths=(29, 24))
case("gemma_mqa", dict(GEMMA, num_key_value_heads=1, head_dim=24), lengths=(31, 26))
case("gemma_head", dict(GEMMA, tie_word_embeddings=False, num_hidden_layers=3), lengths=(27, 33))
GEMMA2 = dict(
    GEMMA, model_type="gemma2", sliding_window=9, query_pre_attn_scalar=24, attn_logit_softcapping=2.0,
    final_logit_softcapping=5.0, num_hidden_layers=3,
)  # fmt: skip
case(
    "gemma2",
    GEMMA2,
    lengths=(30, 37),
    mutants=[
        dict(sliding_window=8),
        dict(query_pre_attn_scalar=16),
        dict(attn_logit_softcapping=None),
        dict(final_logit_softcapping=None),
    ],
)
case("gemma2_no_caps", dict(GEMMA2, attn_logit_softcapping=None, final_logit_softcapping=None), lengths=(28, 33))
case("gemma2_layers", dict(GEMMA2, layer_types=["full_attention", "sliding_attention", "sliding_attention"]), lengths=(31, 25))
GEMMA3 = dict(
    GEMMA, model_type="gemma3_text", sliding_window=9, query_pre_attn_scalar=24, num_hidden_layers=3,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=5000.0),
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
    ),
)  # fmt: skip
case("gemma3_text", GEMMA3, lengths=(30, 37), mutants=[dict(sliding_window=8), dict(query_pre_attn_scalar=16)])
case(
    "gemma3_text_linear",
    dict(
        GEMMA3,
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=5000.0),
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
        ),
    ),
    lengths=(32, 35),
)
case("gemma3_text_head", dict(GEMMA3, tie_word_embeddings=False, num_key_value_heads=1, vocab_size=37), lengths=(26, 31))

# Phi-3.
PHI3 = dict(
    LLAMA, model_type="phi3", pad_token_id=0, original_max_position_embeddings=64, vocab_size=53,
    intermediate_size=28,
)  # fmt: skip
LONG = dict(
    rope_type="longrope", rope_theta=100.0, short_factor=[1.1, 1.3, 1.6, 2.0], long_factor=[1.2, 2.0, 3.5, 6.0],
)  # fmt: skip
case("phi3", dict(PHI3, sliding_window=9), lengths=(29, 24), mutants=[dict(sliding_window=8)])
case(
    "phi3_short",
    dict(PHI3, rope_parameters=LONG, max_position_embeddings=256, original_max_position_embeddings=128),
    lengths=(30, 37),
)
# The whole prompt is longer than the original length, so that all keys are rotated alike.
case(
    "phi3_long",
    dict(PHI3, rope_parameters=LONG, max_position_embeddings=96, original_max_position_embeddings=20),
    lengths=(30, 37),
)
case(
    "phi3_partial",
    dict(PHI3, num_attention_heads=2, rope_parameters=dict(rope_type="default", partial_rotary_factor=0.75), tie_word_embeddings=True),
    lengths=(26, 33),
)

# GLM-4-0414.
GLM4 = dict(GLM, model_type="glm4", intermediate_size=28, vocab_size=53)
case("glm4_native", GLM4, lengths=(28, 33), mutants=[ropes({}, partial_rotary_factor=1.0)])
case("glm4_native_no_bias", dict(GLM4, attention_bias=False, num_key_value_heads=1), lengths=(30, 25))
case("glm4_native_tied", dict(GLM4, tie_word_embeddings=True, num_hidden_layers=3), lengths=(27, 34))

# Text parts of models that read images. The tensors of the other parts are in the files.
IMAGE_IDS = dict(image_token_id=0, video_token_id=1, vision_start_token_id=2, vision_end_token_id=2)
EYES = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2, out_hidden_size=32)
WITH_IMAGES = dict(LLAMA, intermediate_size=28, vocab_size=53)
MROPE = ropes(dict(rope_type="default", mrope_section=[2, 1, 1]), rope_theta=500.0)


def with_images(model_type: str, text: Config, vision: Config, **over: Any) -> Config:
    return dict(model_type=model_type, text_config=text, vision_config=vision, **over)


case(
    "qwen2_5_vl",
    with_images("qwen2_5_vl", dict(WITH_IMAGES, model_type="qwen2_5_vl_text", **MROPE), EYES, **IMAGE_IDS),
    lengths=(27, 32),
)
case(
    "qwen3_vl",
    with_images(
        "qwen3_vl", dict(WITH_IMAGES, model_type="qwen3_vl_text", head_dim=8, **MROPE),
        dict(EYES, num_position_embeddings=16, deepstack_visual_indexes=[0]), **IMAGE_IDS,
    ),
    lengths=(29, 24),
)  # fmt: skip
case(
    "glm4v",
    with_images(
        "glm4v", dict(GLM, model_type="glm4v_text", vocab_size=53, intermediate_size=28, num_attention_heads=2,
                      **ropes(dict(rope_type="default", mrope_section=[2, 1, 1], partial_rotary_factor=0.5), rope_theta=500.0)),
        dict(EYES, image_size=4), image_start_token_id=2, image_end_token_id=2, **IMAGE_IDS,
    ),
    lengths=(31, 26),
)  # fmt: skip
case(
    "mistral3",
    with_images(
        "mistral3", dict(WITH_IMAGES, model_type="mistral", head_dim=16, sliding_window=None),
        dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
             num_attention_heads=2, patch_size=2, image_size=4),
        image_token_index=0,
    ),
    lengths=(30, 25),
)  # fmt: skip
case(
    "gemma3",
    with_images(
        "gemma3", dict(GEMMA3, vocab_size=37),
        dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
             num_attention_heads=1, patch_size=2, image_size=4),
        mm_tokens_per_image=4, image_token_index=0, boi_token_index=1, eoi_token_index=2,
    ),
    lengths=(26, 33),
)  # fmt: skip

# SmolLM3.
SMOLLM3 = dict(LLAMA, model_type="smollm3", num_hidden_layers=4, intermediate_size=24, vocab_size=53, pad_token_id=0)
case("smollm3", SMOLLM3, lengths=(29, 24), mutants=[dict(no_rope_layers=[1] * 4)])
case("smollm3_listed", dict(SMOLLM3, no_rope_layers=[0, 1, 0, 1], tie_word_embeddings=True), lengths=(31, 27))
case("smollm3_bias", dict(SMOLLM3, mlp_bias=True, no_rope_layer_interval=2), lengths=(30, 25))

# Granite.
GRANITE = dict(
    LLAMA, model_type="granite", embedding_multiplier=6.0, residual_multiplier=0.6, attention_multiplier=0.3,
    logits_scaling=2.0, intermediate_size=28, vocab_size=53,
)  # fmt: skip
case(
    "granite",
    GRANITE,
    lengths=(29, 24),
    mutants=[
        dict(embedding_multiplier=1.0),
        dict(residual_multiplier=1.0),
        dict(attention_multiplier=1.0),
        dict(logits_scaling=1.0),
    ],
)
case("granite_bias", dict(GRANITE, attention_bias=True, mlp_bias=True), lengths=(31, 26))
case("granite_mqa", dict(GRANITE, num_key_value_heads=1, num_hidden_layers=3), lengths=(28, 33))

# OLMo 2 and 3.
OLMO2 = dict(LLAMA, model_type="olmo2", intermediate_size=28, vocab_size=53, pad_token_id=0)
case("olmo2", OLMO2, lengths=(29, 24))
case("olmo2_mha", dict(OLMO2, num_key_value_heads=4, num_hidden_layers=3), lengths=(31, 26))
case("olmo2_mqa", dict(OLMO2, num_key_value_heads=1, vocab_size=61), lengths=(26, 31))
OLMO3 = dict(OLMO2, model_type="olmo3", sliding_window=9, num_hidden_layers=4, intermediate_size=20)
case("olmo3", OLMO3, lengths=(30, 37), mutants=[dict(sliding_window=8)])
case("olmo3_layers", dict(OLMO3, num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"]), lengths=(28, 33))
case(
    "olmo3_yarn",
    dict(
        OLMO3,
        max_position_embeddings=96,
        rope_parameters=dict(
            full_attention=dict(YARN, rope_theta=500.0),
            sliding_attention=dict(rope_type="default", rope_theta=500.0),
        ),
    ),
    lengths=(29, 36),
)

# Cohere.
COHERE = dict(
    {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, model_type="cohere", layer_norm_eps=1e-3, pad_token_id=0,
    logit_scale=0.25, tie_word_embeddings=True, intermediate_size=28, vocab_size=53,
)  # fmt: skip
case("cohere", COHERE, lengths=(29, 24), mutants=[dict(logit_scale=1.0)])
case("cohere_qk_norm", dict(COHERE, use_qk_norm=True), lengths=(31, 26))
case("cohere_bias", dict(COHERE, attention_bias=True, tie_word_embeddings=False), lengths=(28, 33))
COHERE2 = dict(COHERE, model_type="cohere2", sliding_window=9, num_hidden_layers=4, intermediate_size=20)
case("cohere2", COHERE2, lengths=(30, 37), mutants=[dict(sliding_window=8)])
case("cohere2_layers", dict(COHERE2, num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"]), lengths=(28, 33))
case("cohere2_head", dict(COHERE2, tie_word_embeddings=False, logit_scale=0.5), lengths=(27, 32))

# EXAONE 4.
EXAONE4 = dict(
    LLAMA, model_type="exaone4", sliding_window=None, layer_types=["full_attention"] * 2,
    intermediate_size=28, vocab_size=53, pad_token_id=0,
)  # fmt: skip
case("exaone4", EXAONE4, lengths=(29, 24))
case(
    "exaone4_hybrid",
    dict(EXAONE4, sliding_window=9, layer_types=None, num_hidden_layers=4, intermediate_size=20),
    lengths=(30, 37),
    mutants=[dict(sliding_window=8)],
)
case("exaone4_tied", dict(EXAONE4, tie_word_embeddings=True, num_key_value_heads=4), lengths=(28, 33))

# Seed-OSS.
SEED = dict(LLAMA, model_type="seed_oss", head_dim=16, intermediate_size=28, vocab_size=53, pad_token_id=0)
case("seed_oss", SEED, lengths=(29, 24))
case("seed_oss_no_bias", dict(SEED, attention_bias=False), lengths=(31, 26))
case("seed_oss_all_biases", dict(SEED, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True), lengths=(28, 33))

# StarCoder2.
STARCODER2 = dict(
    {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, model_type="starcoder2", norm_epsilon=1e-3,
    tie_word_embeddings=True, vocab_size=53,
)  # fmt: skip
case("starcoder2", STARCODER2, lengths=(29, 24))
case("starcoder2_sliding", dict(STARCODER2, sliding_window=9), lengths=(30, 37), mutants=[dict(sliding_window=8)])
case("starcoder2_no_bias", dict(STARCODER2, use_bias=False, tie_word_embeddings=False), lengths=(28, 33))

# StableLM.
STABLELM = dict(
    {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, model_type="stablelm", layer_norm_eps=1e-3,
    intermediate_size=28, vocab_size=53, rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5),
)  # fmt: skip
case("stablelm", STABLELM, lengths=(29, 24), mutants=[ropes({}, partial_rotary_factor=1.0)])
case("stablelm_parallel", dict(STABLELM, use_parallel_residual=True), lengths=(31, 26))
case("stablelm_bias", dict(STABLELM, use_qkv_bias=True, tie_word_embeddings=True), lengths=(28, 33))

# Phi-1 and 2.
PHI = dict(
    {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, model_type="phi", layer_norm_eps=1e-3,
    vocab_size=53, rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5),
)  # fmt: skip
case("phi", PHI, lengths=(29, 24), mutants=[ropes({}, partial_rotary_factor=1.0)])
case("phi_mha", dict(PHI, num_key_value_heads=4, hidden_act="gelu"), lengths=(31, 26))
case("phi_rotary", dict(PHI, rope_parameters=dict(rope_type="default", partial_rotary_factor=0.25)), lengths=(28, 33))

# OPT.
OPT = dict(
    model_type="opt", vocab_size=53, hidden_size=32, word_embed_proj_dim=32, ffn_dim=44, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=64, pad_token_id=1, bos_token_id=2, eos_token_id=2,
)  # fmt: skip
case("opt", OPT, lengths=(29, 24))
case("opt_gelu", dict(OPT, activation_function="gelu", ffn_dim=60), lengths=(31, 26))
case("opt_no_bias", dict(OPT, enable_bias=False, num_attention_heads=8), lengths=(28, 33))

# GPT-NeoX.
NEOX = dict(
    model_type="gpt_neox", vocab_size=53, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=64, layer_norm_eps=1e-3, bos_token_id=1, eos_token_id=2,
    rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5), tie_word_embeddings=False,
)  # fmt: skip
case("gpt_neox", NEOX, lengths=(29, 24), mutants=[ropes({}, partial_rotary_factor=1.0)])
case("gpt_neox_sequential", dict(NEOX, use_parallel_residual=False), lengths=(31, 26))
case("gpt_neox_no_bias", dict(NEOX, attention_bias=False, num_attention_heads=2), lengths=(28, 33))

# GPT-2, StarCoder and GPT-J.
GPT2 = dict(
    model_type="gpt2", vocab_size=53, n_embd=32, n_layer=2, n_head=4, n_positions=64, layer_norm_epsilon=1e-3,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip
case("gpt2", GPT2, lengths=(29, 24))
case("gpt2_inner", dict(GPT2, n_inner=44, activation_function="gelu", tie_word_embeddings=False), lengths=(31, 26))
case("gpt2_scales", dict(GPT2, n_layer=3, n_inner=28, scale_attn_by_inverse_layer_idx=True), lengths=(28, 33))
BIGCODE = dict(GPT2, model_type="gpt_bigcode", n_inner=44)
case("gpt_bigcode", BIGCODE, lengths=(29, 24))
case("gpt_bigcode_mha", dict(BIGCODE, multi_query=False), lengths=(31, 26))
case("gpt_bigcode_wide", dict(BIGCODE, n_head=8, tie_word_embeddings=False), lengths=(28, 33))
GPTJ = dict(GPT2, model_type="gptj", n_inner=44, rotary_dim=4, tie_word_embeddings=False)
case("gptj", GPTJ, lengths=(29, 24))
case("gptj_rotary", dict(GPTJ, rotary_dim=8, n_head=2), lengths=(31, 26))
case("gptj_gelu", dict(GPTJ, activation_function="gelu", n_layer=3), lengths=(28, 33))

# BLOOM, Falcon and MPT.
BLOOM = dict(
    model_type="bloom", vocab_size=53, hidden_size=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-3,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
case("bloom", BLOOM, lengths=(29, 24))
case("bloom_heads", dict(BLOOM, hidden_size=30, n_head=5), lengths=(31, 26))
case("bloom_head", dict(BLOOM, tie_word_embeddings=False, n_layer=3, hidden_size=24), lengths=(28, 33))
FALCON = dict(
    model_type="falcon", vocab_size=53, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    layer_norm_epsilon=1e-3, ffn_hidden_size=44, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    tie_word_embeddings=True,
)  # fmt: skip
case("falcon", FALCON, lengths=(29, 24))
case("falcon_new", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2), lengths=(31, 26))
case("falcon_11b", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, tie_word_embeddings=False), lengths=(28, 33))
case("falcon_alibi", dict(FALCON, alibi=True, multi_query=False, parallel_attn=False, bias=True), lengths=(30, 25))
MPT = dict(
    model_type="mpt", vocab_size=53, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, layer_norm_epsilon=1e-3,
    bos_token_id=1, eos_token_id=2, tie_word_embeddings=True,
)  # fmt: skip
case("mpt", MPT, lengths=(29, 24))
case("mpt_heads", dict(MPT, d_model=24, n_heads=6), lengths=(31, 26))
case("mpt_scale", dict(MPT, attn_config=dict(softmax_scale=0.5)), lengths=(28, 33))

# The same checkpoints under another config.json.
VARIANTS: dict[str, tuple[str, Callable[[Config], Config]]] = {
    "qwen3_moe_v4": ("qwen3_moe", v4),
    "llama_mha_v4": ("llama_mha", v4_oldest),
    "llama_linear_v4": ("llama_linear", v4_type),
    "llama_dynamic_v4": ("llama_dynamic", v4_type),
    "llama_llama3_v4": ("llama_llama3", v4),
    "llama_yarn_v4": ("llama_yarn", v4_type),
    "qwen2_v4": ("qwen2", v4_unused_window),
    "qwen2_sliding_v4": ("qwen2_sliding", v4),
    "glm_v4": ("glm", v4),
}
