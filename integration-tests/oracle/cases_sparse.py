"""The test cases of families with sparse attention: an indexer chooses the keys of each query.

The sequences are shorter than the number of chosen keys, up to which all keys are chosen. A change
to fewer keys must be seen, so that the cases would tell if sequences were longer.
"""

from bases import LLAMA, PLAIN, case, ropes
from cases_experts import DEEPSEEK_V3, LATENT_YARN
from cases_images import with_images

CHOICE = dict(index_topk=64, index_head_dim=12, index_n_heads=8)
FEWER = dict(index_topk=8)
V32 = dict(DEEPSEEK_V3, model_type="deepseek_v32", **CHOICE)
case(
    "deepseek_v32",
    dict(V32, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=6),
    lengths=(29, 24),
    mutants=[FEWER, dict(n_group=1, topk_group=1), dict(topk_group=3)],
)
case(
    "deepseek_v32_yarn",
    dict(
        V32, max_position_embeddings=96, rope_parameters=LATENT_YARN, v_head_dim=12, first_k_dense_replace=0,
        norm_topk_prob=False,
    ),
    lengths=(27, 32),
    mutants=[FEWER, PLAIN, ropes(LATENT_YARN, mscale_all_dim=0.7), dict(norm_topk_prob=True)],
)  # fmt: skip
case(
    "deepseek_v32_layers",
    dict(V32, mlp_layer_types=["sparse", "dense"], n_shared_experts=2, vocab_size=53, index_n_heads=4),
    lengths=(26, 31),
    mutants=[FEWER, dict(routed_scaling_factor=1.0)],
)

DSA = dict(V32, model_type="glm_moe_dsa", rope_parameters=dict(rope_type="default", rope_theta=500.0))
case(
    "glm_moe_dsa",
    dict(DSA, v_head_dim=14),
    lengths=(28, 33),
    mutants=[FEWER, dict(routed_scaling_factor=1.0)],
)
case(
    "glm_moe_dsa_shared",
    dict(
        DSA, num_hidden_layers=3, indexer_types=["full", "shared", "full"], moe_intermediate_size=4, vocab_size=37,
        intermediate_size=20, index_n_heads=4, n_routed_experts=4,
    ),
    lengths=(25, 30),
    mutants=[FEWER, dict(norm_topk_prob=False)],
)  # fmt: skip
case(
    "glm_moe_dsa_tied",
    dict(
        DSA, tie_word_embeddings=True, first_k_dense_replace=0, n_shared_experts=2, num_experts_per_tok=3,
        norm_topk_prob=False, rms_norm_eps=1e-3,
    ),
    lengths=(31, 26),
    mutants=[FEWER, dict(norm_topk_prob=True)],
)  # fmt: skip

M3 = dict(
    LLAMA, model_type="minimax_m3_vl_text", vocab_size=37, num_attention_heads=4, head_dim=12,
    intermediate_size=6, dense_intermediate_size=28, shared_intermediate_size=8, num_local_experts=6,
    num_experts_per_tok=2, routed_scaling_factor=1.5, rotary_dim=6, swiglu_limit=0.8, swiglu_alpha=1.702,
    mlp_layer_types=["dense", "sparse"], layer_types=["full_attention", "minimax_m3_sparse"],
    index_n_heads=2, index_head_dim=12, index_block_size=8, index_topk_blocks=8, index_local_blocks=1,
    rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5),
)  # fmt: skip
SEEING = dict(projector_hidden_size=4, image_token_index=0, video_token_index=1)
EYES3 = dict(hidden_size=6, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, patch_size=2, image_size=4)


def m3(name: str, lengths: tuple[int, int], **over: object) -> None:
    text = dict(M3, **over)
    mutants = [
        dict(text_config=dict(text, **change))
        for change in (dict(index_topk_blocks=1), dict(routed_scaling_factor=1.0), dict(swiglu_alpha=1.5), dict(swiglu_limit=7.0))
    ]  # fmt: skip
    case(name, with_images("minimax_m3_vl", text, EYES3, **SEEING), lengths=lengths, mutants=mutants)


m3("minimax_m3", (28, 33))
m3(
    "minimax_m3_mqa", (25, 30), num_key_value_heads=1, index_n_heads=1, num_experts_per_tok=3, swiglu_alpha=1.2,
    mlp_layer_types=["sparse", "dense"], swiglu_limit=0.6,
)  # fmt: skip
m3(
    "minimax_m3_all", (31, 26), num_key_value_heads=4, index_n_heads=4, num_local_experts=4,
    mlp_layer_types=["sparse"] * 2, layer_types=["minimax_m3_sparse"] * 2, routed_scaling_factor=2.0,
)  # fmt: skip
