"""The test cases of families whose published checkpoints have code, keys or names of their own.
transformers computes a twin of each."""

from bases import LLAMA, PLAIN, ROPE, case
from cases_dense import FALCON, MPT, OPT, PHI, STABLELM
from cases_experts import DEEPSEEK_V3, LATENT_YARN
from cases_newer import OLMOE

INTERNLM2 = dict(LLAMA, attention_bias=False, vocab_size=53)
case("internlm2", INTERNLM2, lengths=(29, 24), layout="internlm2")
case(
    "internlm2_bias",
    dict(INTERNLM2, attention_bias=True, num_key_value_heads=1, num_attention_heads=2, tie_word_embeddings=True),
    lengths=(31, 26),
    layout="internlm2",
)
# The published models stretch their contexts.
DYNAMIC = dict(rope_type="dynamic", rope_theta=500.0, factor=2.0)
case(
    "internlm2_dynamic",
    dict(ROPE, attention_bias=False, head_dim=8, rope_parameters=DYNAMIC, max_position_embeddings=40),
    lengths=(22, 45, 34),
    layout="internlm2",
    mutants=[PLAIN],
)

INTERNLM3 = dict(LLAMA, vocab_size=53, head_dim=16, intermediate_size=28)
case("internlm3", dict(INTERNLM3, attention_bias=False), lengths=(29, 24), layout="internlm3")
case(
    "internlm3_bias",
    dict(INTERNLM3, attention_bias=True, mlp_bias=True, num_key_value_heads=1, head_dim=8),
    lengths=(31, 26),
    layout="internlm3",
)
case(
    "internlm3_qkv_bias",
    dict({k: v for k, v in INTERNLM3.items() if k != "head_dim"}, model_type="qwen2", num_key_value_heads=4),
    lengths=(28, 33),
    layout="internlm3",
)

QWEN = dict(LLAMA, model_type="qwen2", vocab_size=53, num_key_value_heads=4, intermediate_size=22, rms_norm_eps=1e-3)
case("qwen", QWEN, lengths=(29, 24), layout="qwen")
case("qwen_heads", dict(QWEN, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=3), lengths=(31, 26), layout="qwen")
case(
    "qwen_theta",
    dict(QWEN, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    lengths=(28, 33),
    layout="qwen",
)

case("kimi_k2", dict(DEEPSEEK_V3, vocab_size=53, num_experts_per_tok=3), lengths=(29, 24), layout="kimi_k2")
case(
    "kimi_k2_yarn",
    dict(DEEPSEEK_V3, max_position_embeddings=96, rope_parameters=LATENT_YARN, n_shared_experts=2),
    lengths=(27, 32),
    mutants=[PLAIN],
    layout="kimi_k2",
)

# Early repositories of known families.
case("llama_first", dict(LLAMA, num_key_value_heads=4, vocab_size=53), lengths=(29, 24), layout="first_llama")
case(
    "llama_yi",
    dict(LLAMA, vocab_size=53, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    lengths=(31, 26),
    layout="yi",
)
case(
    "llama_internlm",
    dict(
        LLAMA, vocab_size=53, num_key_value_heads=4, attention_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0),
    ),
    lengths=(28, 33),
    layout="internlm",
)  # fmt: skip
case("stablelm_epoch", dict(STABLELM, use_qkv_bias=True), lengths=(30, 25), layout="stablelm_epoch")
REFINED_WEB = dict(FALCON, hidden_size=16, ffn_hidden_size=64, layer_norm_epsilon=1e-3)
case("falcon_refined_web_model", REFINED_WEB, lengths=(29, 24), layout="refined_web")
case(
    "falcon_refined_web",
    dict(REFINED_WEB, new_decoder_architecture=True, num_kv_heads=2),
    lengths=(31, 26),
    layout="refined_web",
)
case(
    "falcon_refined_web_alibi",
    dict(REFINED_WEB, alibi=True, multi_query=False, parallel_attn=False, bias=True, hidden_size=24, ffn_hidden_size=96),
    lengths=(28, 33),
    layout="refined_web",
)
PHI_MSFT = dict(PHI, num_key_value_heads=4, hidden_size=24, intermediate_size=96, num_attention_heads=4)
PHI_MSFT["rope_parameters"] = dict(rope_type="default", partial_rotary_factor=2 / 3)
case("phi_msft", PHI_MSFT, lengths=(29, 24), layout="phi_msft")
case(
    "phi_msft_rotary",
    dict(PHI_MSFT, num_attention_heads=2, num_key_value_heads=2, hidden_size=16, intermediate_size=64,
         rope_parameters=dict(rope_type="default", partial_rotary_factor=0.25)),
    lengths=(31, 26),
    layout="phi_msft",
)  # fmt: skip

# StableLM 2 12B: a norm for each head.
case(
    "stablelm_head_norms",
    dict(STABLELM, qk_layernorm=True, use_parallel_residual=True),
    lengths=(29, 24),
    mutants=[dict(qk_layernorm=False)],
)
case(
    "stablelm_head_norms_bias",
    dict(STABLELM, qk_layernorm=True, use_qkv_bias=True, num_attention_heads=8, num_key_value_heads=2),
    lengths=(31, 26),
    mutants=[dict(qk_layernorm=False)],
)

# Bounds on queries, keys and values.
case("olmoe_clip", dict(OLMOE, clip_qkv=0.8), lengths=(28, 33), mutants=[dict(clip_qkv=None), dict(clip_qkv=0.9)])
case(
    "olmoe_clip_bias",
    dict(OLMOE, clip_qkv=0.6, attention_bias=True, num_key_value_heads=4, vocab_size=53),
    lengths=(25, 30),
    mutants=[dict(clip_qkv=None)],
)
case(
    "mpt_clip",
    dict(MPT, attn_config=dict(clip_qkv=0.9)),
    lengths=(29, 24),
    mutants=[dict(attn_config=dict(clip_qkv=None)), dict(attn_config=dict(clip_qkv=1.0))],
)
case(
    "mpt_clip_heads",
    dict(MPT, d_model=24, n_heads=6, attn_config=dict(clip_qkv=0.5)),
    lengths=(31, 26),
    mutants=[dict(attn_config=dict(clip_qkv=None))],
)

# OPT-350M: norms after the sums, and narrow embeddings.
case("opt_350m", dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=16), lengths=(29, 24))
case("opt_after_sums", dict(OPT, do_layer_norm_before=False, enable_bias=False), lengths=(31, 26))
case("opt_wide_embedding", dict(OPT, word_embed_proj_dim=40, enable_bias=False, num_hidden_layers=1), lengths=(27, 34))

# A norm with a bias for all heads of Phi.
case("phi_head_norms", dict(PHI, qk_layernorm=True), lengths=(29, 24), mutants=[dict(qk_layernorm=False)])
case(
    "phi_head_norms_mha",
    dict(PHI, qk_layernorm=True, num_key_value_heads=4, num_hidden_layers=1),
    lengths=(31, 26),
    mutants=[dict(qk_layernorm=False)],
)

# The first OLMo: norms without scales.
OLMO = dict({k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, model_type="olmo", vocab_size=53, pad_token_id=0)
case("olmo", OLMO, lengths=(29, 24))
case("olmo_clip", dict(OLMO, clip_qkv=0.7, num_key_value_heads=4), lengths=(31, 26), mutants=[dict(clip_qkv=None), dict(clip_qkv=0.8)])
case("olmo_bias", dict(OLMO, attention_bias=True, tie_word_embeddings=True), lengths=(28, 33))
