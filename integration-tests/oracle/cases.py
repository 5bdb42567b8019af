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
