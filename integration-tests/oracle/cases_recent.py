"""The test cases of families with a router, an activation function or factors of their own."""

from bases import LLAMA, PLAIN, case, ropes
from cases_experts import LATENT_YARN

# SparseMixer. A large noise makes several experts share a softmax.
LONGROPE = dict(
    rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.5, 2.0, 4.0], long_factor=[1.0, 2.0, 4.0, 8.0],
    short_mscale=1.3, long_mscale=1.3, original_max_position_embeddings=128, factor=1.0,
)  # fmt: skip
PHIMOE = dict(
    LLAMA, model_type="phimoe", num_local_experts=6, num_experts_per_tok=2, intermediate_size=8, pad_token_id=0,
    router_jitter_noise=0.3, rope_parameters=dict(rope_type="default", rope_theta=500.0),
)  # fmt: skip
case("phimoe", PHIMOE, lengths=(28, 33), mutants=[dict(router_jitter_noise=noise) for noise in (0.01, 0.5)])
case(
    "phimoe_bias",
    dict(PHIMOE, attention_bias=True, lm_head_bias=True, num_key_value_heads=1, vocab_size=53, sliding_window=9),
    lengths=(25, 30),
    mutants=[dict(router_jitter_noise=0.01)],
)
case(
    "phimoe_long",
    dict(PHIMOE, num_local_experts=4, rope_parameters=LONGROPE, num_key_value_heads=4, max_position_embeddings=128),
    lengths=(31, 24),
    mutants=[ropes(LONGROPE, short_mscale=1.2), ropes(LONGROPE, short_factor=[1.0] * 4)],
)
# What GGUF files do not have is as in the published model.
case(
    "phimoe_published",
    dict(
        PHIMOE, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.01, num_key_value_heads=1,
        rope_parameters=LONGROPE, max_position_embeddings=128,
    ),
    lengths=(26, 31),
    mutants=[dict(router_jitter_noise=0.3)],
)  # fmt: skip

# xIELU.
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
APERTUS = dict(LLAMA, model_type="apertus", hidden_act="xielu", rope_parameters=LLAMA3, pad_token_id=0)
case("apertus", APERTUS, lengths=(28, 33), mutants=[PLAIN])
case(
    "apertus_bias",
    dict(APERTUS, attention_bias=True, num_key_value_heads=1, vocab_size=53, rope_parameters=PLAIN["rope_parameters"]),
    lengths=(31, 26),
)
case(
    "apertus_tied",
    dict(
        APERTUS, tie_word_embeddings=True, num_key_value_heads=4, num_hidden_layers=3, intermediate_size=28,
        rms_norm_eps=1e-3,
    ),
    lengths=(27, 32),
)  # fmt: skip

# Latent attention.
MINICPM3 = dict(
    LLAMA, model_type="minicpm3", num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=10,
    qk_rope_head_dim=8, v_head_dim=6, scale_emb=3.0, scale_depth=1.2, dim_model_base=24,
)  # fmt: skip
case(
    "minicpm3",
    MINICPM3,
    lengths=(28, 33),
    mutants=[dict(scale_emb=1.0), dict(scale_depth=1.0), dict(dim_model_base=32)],
)
case(
    "minicpm3_long",
    dict(
        MINICPM3, tie_word_embeddings=True, vocab_size=53, q_lora_rank=None, rms_norm_eps=1e-3, max_position_embeddings=128,
        rope_parameters={k: v for k, v in LONGROPE.items() if not k.endswith("mscale")},
    ),
    lengths=(30, 25),
    mutants=[ropes({}, short_factor=[1.0] * 4)],
)  # fmt: skip
case(
    "minicpm3_yarn",
    dict(
        MINICPM3, max_position_embeddings=96, rope_parameters=LATENT_YARN, v_head_dim=None, scale_depth=None,
        dim_model_base=None,
    ),
    lengths=(27, 32),
    mutants=[PLAIN],
)  # fmt: skip
case(
    "minicpm3_published",
    dict(
        MINICPM3, scale_emb=12.0, scale_depth=1.4, dim_model_base=256, v_head_dim=8,
        max_position_embeddings=128,
        rope_parameters={k: v for k, v in LONGROPE.items() if not k.endswith("mscale")},
    ),
    lengths=(29, 26),
    mutants=[dict(scale_emb=10.0), dict(scale_depth=1.2), dict(dim_model_base=200)],
)  # fmt: skip

# Qwen2 with another name and layers that predict several tokens.
MIMO = dict(LLAMA, model_type="qwen2", vocab_size=53)
case("mimo", MIMO, lengths=(28, 33), layout="mimo")
case("mimo_heads", dict(MIMO, num_key_value_heads=1, num_hidden_layers=3), lengths=(31, 26), layout="mimo")
case(
    "mimo_theta",
    dict(MIMO, num_key_value_heads=4, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    lengths=(27, 32),
    layout="mimo",
)

# Latent attention whose queries are scaled by their position.
SCALED = dict(
    rope_type="yarn", rope_theta=500.0, factor=8.0, original_max_position_embeddings=8, beta_fast=4.0, beta_slow=1.0,
    mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5,
)  # fmt: skip
MISTRAL4 = dict(
    LLAMA, model_type="mistral4", num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8,
    qk_rope_head_dim=8, v_head_dim=6, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=8,
    n_shared_experts=1, first_k_dense_replace=1, rope_parameters=SCALED, pad_token_id=0,
)  # fmt: skip
NO_BETA = ropes(SCALED, llama_4_scaling_beta=0.0)
case(
    "mistral4",
    dict(MISTRAL4, routed_scaling_factor=1.5),
    lengths=(28, 33),
    mutants=[NO_BETA, dict(routed_scaling_factor=1.0), dict(rope_interleave=False), dict(norm_topk_prob=False)],
)
case(
    "mistral4_groups",
    dict(
        MISTRAL4, n_routed_experts=8, n_group=4, topk_group=2, first_k_dense_replace=0, num_experts_per_tok=3,
        moe_intermediate_size=6, norm_topk_prob=False, vocab_size=53,
    ),
    lengths=(31, 24),
    mutants=[NO_BETA, dict(topk_group=3), dict(n_group=1, topk_group=1)],
)  # fmt: skip
case(
    "mistral4_half",
    dict(
        MISTRAL4, rope_interleave=False, q_lora_rank=None, n_shared_experts=2, tie_word_embeddings=True,
        rope_parameters=dict(SCALED, mscale_all_dim=0.5, original_max_position_embeddings=16),
    ),
    lengths=(25, 30),
    mutants=[NO_BETA, dict(rope_interleave=True)],
)  # fmt: skip
