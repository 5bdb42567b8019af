"""The test cases of families that came after those of `cases_dense` and `cases_experts`, most of
them with experts."""

from bases import LLAMA, PLAIN, case, ropes
from cases_experts import DEEPSEEK_V3, LATENT_YARN, MOE
from cases_images import with_images
from cases_recurrent import case as recurrent_case

# Families without experts.
ERNIE4_5 = dict(LLAMA, model_type="ernie4_5", head_dim=16, num_key_value_heads=2)
case("ernie4_5", ERNIE4_5, lengths=(29, 24))
case(
    "ernie4_5_bias",
    dict(ERNIE4_5, use_bias=True, num_key_value_heads=1, intermediate_size=28, vocab_size=53),
    lengths=(31, 26),
)
case(
    "ernie4_5_tied",
    dict(ERNIE4_5, tie_word_embeddings=True, num_hidden_layers=3, head_dim=8, intermediate_size=28),
    lengths=(28, 33),
)
ARCEE = dict(LLAMA, model_type="arcee")
case("arcee", ARCEE, lengths=(27, 32), mutants=[dict(hidden_act="relu")])
case(
    "arcee_bias",
    dict(ARCEE, attention_bias=True, mlp_bias=True, num_key_value_heads=4, vocab_size=53),
    lengths=(29, 24),
)
case("arcee_wide", dict(ARCEE, head_dim=16, num_key_value_heads=1, num_hidden_layers=3), lengths=(30, 26))
CWM = dict(
    LLAMA, model_type="cwm", head_dim=16, sliding_window=9, num_hidden_layers=3, intermediate_size=28,
    rope_parameters=dict(rope_type="default", rope_theta=500.0),
)  # fmt: skip
case("cwm", CWM, lengths=(30, 25), mutants=[dict(sliding_window=8), dict(layer_types=["sliding_attention"] * 3)])
case(
    "cwm_layers",
    dict(CWM, layer_types=["sliding_attention", "full_attention", "sliding_attention"], vocab_size=53),
    lengths=(27, 31),
    mutants=[dict(sliding_window=10)],
)
case("cwm_bias", dict(CWM, num_hidden_layers=2, mlp_bias=True, num_key_value_heads=4), lengths=(28, 24))

# Latent attention.
GLM4_MOE_LITE = dict(DEEPSEEK_V3, model_type="glm4_moe_lite", num_experts_per_tok=2)
del GLM4_MOE_LITE["first_k_dense_replace"]
case(
    "glm4_moe_lite",
    GLM4_MOE_LITE,
    lengths=(28, 33),
    mutants=[dict(routed_scaling_factor=1.0), dict(rope_interleave=False), dict(norm_topk_prob=False)],
)
case(
    "glm4_moe_lite_layers",
    dict(
        GLM4_MOE_LITE, mlp_layer_types=["sparse", "dense"], v_head_dim=12,
        n_routed_experts=8, n_group=4, topk_group=2, moe_intermediate_size=6, vocab_size=53, intermediate_size=12,
    ),
    lengths=(25, 30),
    mutants=[dict(topk_group=3), dict(n_group=1, topk_group=1)],
)  # fmt: skip
case(
    "glm4_moe_lite_half",
    dict(GLM4_MOE_LITE, rope_interleave=False, n_shared_experts=2, q_lora_rank=None),
    lengths=(31, 24),
    mutants=[dict(rope_interleave=True)],
)
YOUTU = dict(
    LLAMA, model_type="youtu", num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=10,
    qk_rope_head_dim=8, v_head_dim=6,
)  # fmt: skip
case("youtu", YOUTU, lengths=(28, 33), mutants=[dict(rope_interleave=False)])
case(
    "youtu_tied",
    dict(YOUTU, tie_word_embeddings=True, q_lora_rank=None, vocab_size=53, intermediate_size=28),
    lengths=(30, 25),
)
case(
    "youtu_yarn",
    dict(YOUTU, max_position_embeddings=96, rope_parameters=LATENT_YARN, v_head_dim=12),
    lengths=(27, 32),
    mutants=[PLAIN],
)
case(
    "kimi_k25",
    with_images(
        "kimi_k25",
        dict(DEEPSEEK_V3, vocab_size=53, intermediate_size=12),
        dict(patch_size=2, pos_emb_height=4, pos_emb_width=4, pos_emb_time=1, num_attention_heads=2,
             num_hidden_layers=1, hidden_size=16, intermediate_size=16),
        image_token_id=0, projection_hidden_size=16,
    ),
    lengths=(26, 31),
    renamed=("language_model.model.blocks.", "language_model.model.layers."),
)  # fmt: skip

# Experts.
DOTS1 = dict(
    MOE, model_type="dots1", n_routed_experts=6, n_shared_experts=1, first_k_dense_replace=1, rms_norm_eps=1e-5,
    routed_scaling_factor=1.5, norm_topk_prob=True, sliding_window=None, head_dim=8,
)  # fmt: skip
del DOTS1["num_experts"]
case(
    "dots1",
    DOTS1,
    lengths=(28, 33),
    mutants=[dict(routed_scaling_factor=1.0), dict(num_experts_per_tok=1), dict(norm_topk_prob=False)],
)
case(
    "dots1_sliding",
    dict(DOTS1, sliding_window=9, max_window_layers=1, n_shared_experts=2, first_k_dense_replace=0, vocab_size=53),
    lengths=(30, 25),
    mutants=[dict(sliding_window=8), dict(num_experts_per_tok=1)],
)
case(
    "dots1_groups",
    dict(
        DOTS1, n_routed_experts=8, n_group=4, topk_group=2, attention_bias=True, num_key_value_heads=4,
        moe_intermediate_size=6, norm_topk_prob=False,
    ),
    lengths=(27, 32),
    mutants=[dict(topk_group=3), dict(norm_topk_prob=True)],
)  # fmt: skip
SOLAR_OPEN = dict(
    MOE, model_type="solar_open", n_routed_experts=6, n_shared_experts=1, head_dim=8, n_group=1, topk_group=1,
    routed_scaling_factor=1.5, norm_topk_prob=True,
)  # fmt: skip
for key in ("num_experts", "intermediate_size"):
    del SOLAR_OPEN[key]
case(
    "solar_open",
    SOLAR_OPEN,
    lengths=(28, 33),
    mutants=[dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False)],
)
case(
    "solar_open_bias",
    dict(SOLAR_OPEN, attention_bias=True, n_shared_experts=2, num_key_value_heads=1, vocab_size=53),
    lengths=(25, 30),
    mutants=[dict(num_experts_per_tok=1)],
)
case(
    "solar_open_groups",
    dict(SOLAR_OPEN, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=6),
    lengths=(31, 24),
    mutants=[dict(topk_group=3)],
)
HY_V3 = dict(
    MOE, model_type="hy_v3", head_dim=8, num_shared_experts=1, router_scaling_factor=1.5, num_hidden_layers=2,
)  # fmt: skip
case("hy_v3", HY_V3, lengths=(28, 33), mutants=[dict(router_scaling_factor=1.0), dict(num_experts_per_tok=3)])
case(
    "hy_v3_layers",
    dict(
        HY_V3, mlp_layer_types=["sparse", "dense"], num_shared_experts=2,
        attention_bias=True, vocab_size=53, intermediate_size=12,
    ),
    lengths=(25, 30),
    mutants=[dict(num_experts_per_tok=1)],
)  # fmt: skip
case(
    "hy_v3_tied",
    dict(HY_V3, tie_word_embeddings=True, num_experts_per_tok=3, num_key_value_heads=4, num_experts=5),
    lengths=(31, 24),
)
EXAONE_MOE = dict(
    MOE, model_type="exaone_moe", head_dim=8, num_shared_experts=1, routed_scaling_factor=1.5, sliding_window=9,
    sliding_window_pattern=2, norm_topk_prob=True,
)  # fmt: skip
case(
    "exaone_moe",
    EXAONE_MOE,
    lengths=(30, 25),
    mutants=[
        dict(sliding_window=8),
        dict(layer_types=["sliding_attention", "sliding_attention"]),
        dict(routed_scaling_factor=1.0),
    ],
)
case(
    "exaone_moe_layers",
    dict(
        EXAONE_MOE, num_hidden_layers=3, sliding_window_pattern=3, mlp_layer_types=["dense", "sparse", "dense"],
        num_shared_experts=2, norm_topk_prob=False, vocab_size=53, intermediate_size=12,
    ),
    lengths=(27, 31),
    mutants=[dict(norm_topk_prob=True), dict(sliding_window=10)],
)  # fmt: skip
case(
    "exaone_moe_groups",
    dict(
        EXAONE_MOE, num_experts=8, n_group=4, topk_group=2, num_key_value_heads=4,
        moe_intermediate_size=6, first_k_dense_replace=0,
    ),
    lengths=(28, 24),
    mutants=[dict(topk_group=3)],
)  # fmt: skip
ERNIE4_5_MOE = dict(
    LLAMA, model_type="ernie4_5_moe", moe_num_experts=6, moe_k=2, moe_intermediate_size=8, moe_num_shared_experts=1,
    intermediate_size=20,
)  # fmt: skip
case("ernie4_5_moe", ERNIE4_5_MOE, lengths=(28, 33), mutants=[dict(moe_k=3), dict(moe_k=1)])
case(
    "ernie4_5_moe_layers",
    dict(
        ERNIE4_5_MOE, num_hidden_layers=4, moe_layer_start_index=0, moe_layer_end_index=2, moe_layer_interval=2,
        moe_num_shared_experts=2, vocab_size=53, intermediate_size=12,
    ),
    lengths=(25, 30),
    mutants=[dict(moe_k=1)],
)  # fmt: skip
case(
    "ernie4_5_moe_plain",
    dict(ERNIE4_5_MOE, moe_num_shared_experts=0, tie_word_embeddings=True, moe_layer_start_index=0, moe_num_experts=5),
    lengths=(31, 24),
    mutants=[dict(moe_k=3)],
)
OLMOE = dict(MOE, model_type="olmoe", intermediate_size=8)
del OLMOE["moe_intermediate_size"]
case("olmoe", OLMOE, lengths=(28, 33), mutants=[dict(norm_topk_prob=True), dict(num_experts_per_tok=3)])
case(
    "olmoe_normed",
    dict(OLMOE, norm_topk_prob=True, num_key_value_heads=4, num_experts_per_tok=3, vocab_size=53),
    lengths=(25, 30),
    mutants=[dict(norm_topk_prob=False)],
)
case("olmoe_bias", dict(OLMOE, attention_bias=True, num_experts=4, num_experts_per_tok=3), lengths=(31, 24))
LFM2_MOE = dict(
    LLAMA, model_type="lfm2_moe", moe_intermediate_size=8, num_experts=5, num_experts_per_tok=2, num_dense_layers=1,
    norm_eps=1e-3, intermediate_size=20, conv_L_cache=3, layer_types=["conv", "full_attention"],
    rope_parameters=dict(rope_type="default", rope_theta=500.0),
)  # fmt: skip
del LFM2_MOE["rms_norm_eps"]
recurrent_case(
    "lfm2_moe",
    dict(LFM2_MOE, routed_scaling_factor=1.5),
    lengths=(28, 33),
    mutants=[dict(norm_topk_prob=False), dict(num_experts_per_tok=1), dict(routed_scaling_factor=1.0)],
)
recurrent_case(
    "lfm2_moe_plain",
    dict(LFM2_MOE, use_expert_bias=False, norm_topk_prob=False, conv_bias=True, num_dense_layers=0, vocab_size=53),
    lengths=(25, 30),
    mutants=[dict(norm_topk_prob=True)],
)
recurrent_case(
    "lfm2_moe_tied",
    dict(
        LFM2_MOE, tie_word_embeddings=True, num_hidden_layers=3, layer_types=["full_attention", "conv", "conv"],
        num_dense_layers=2, conv_L_cache=4,
    ),
    lengths=(31, 24),
)  # fmt: skip

# Norms of heads after the rotation.
ALPHA = dict(rope_type="dynamic", rope_theta=500.0, alpha=20.0, factor=1.0)
HUNYUAN = dict(LLAMA, model_type="hunyuan_v1_dense", head_dim=8, rms_norm_eps=1e-3, rope_parameters=ALPHA)
case("hunyuan_v1_dense", HUNYUAN, lengths=(28, 33), mutants=[ropes(ALPHA, alpha=10.0), ropes(ALPHA, rope_theta=400.0)])
case(
    "hunyuan_v1_dense_bias",
    dict(
        HUNYUAN, attention_bias=True, num_key_value_heads=1, vocab_size=53, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0),
    ),
    lengths=(31, 26),
)  # fmt: skip
case(
    "hunyuan_v1_dense_wide",
    dict(
        HUNYUAN, head_dim=16, num_key_value_heads=4, intermediate_size=28,
        rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.0),
    ),
    lengths=(27, 24),
    mutants=[PLAIN],
)  # fmt: skip
HUNYUAN_MOE = dict(HUNYUAN, model_type="hunyuan_v1_moe", num_experts=6, moe_topk=2, intermediate_size=8)
case(
    "hunyuan_v1_moe",
    HUNYUAN_MOE,
    lengths=(28, 33),
    mutants=[dict(moe_topk=1), dict(moe_topk=3), ropes(ALPHA, alpha=10.0)],
)
case(
    "hunyuan_v1_moe_layers",
    dict(HUNYUAN_MOE, moe_topk=[3, 1], attention_bias=True, num_key_value_heads=4, vocab_size=53),
    lengths=(25, 30),
    mutants=[dict(moe_topk=[1, 3]), dict(moe_topk=[3, 2])],
)
case(
    "hunyuan_v1_moe_tied",
    dict(
        HUNYUAN_MOE, tie_word_embeddings=True, num_experts=4, num_key_value_heads=1, head_dim=16,
        rope_parameters=dict(rope_type="default", rope_theta=500.0),
    ),
    lengths=(31, 24),
)  # fmt: skip
