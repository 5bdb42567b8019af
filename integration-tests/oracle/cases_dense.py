"""The test cases of dense decoders: prompt lengths, and changes that must be visible."""

from collections.abc import Sequence
from typing import Any

import torch

from bases import GLM, LLAMA, PLAIN, YARN, Config, Lengths, case, llama, rope, ropes


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
