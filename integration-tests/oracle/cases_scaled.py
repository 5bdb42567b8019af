"""The cases of Ministral 3, whose queries are scaled by their position, and of Qwen3-VL with
experts."""

from typing import Any

from bases import LLAMA, Config, Lengths, case, ropes
from cases_images import EYES, IMAGE_IDS, MROPE, WITH_IMAGES, with_images

SCALED = dict(
    rope_type="yarn", rope_theta=500.0, factor=8.0, original_max_position_embeddings=8,
    beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5,
)  # fmt: skip
MINISTRAL3 = dict(
    LLAMA, model_type="ministral3", head_dim=16, intermediate_size=28, vocab_size=53, pad_token_id=0,
    rope_parameters=SCALED,
)  # fmt: skip
NO_BETA = ropes(SCALED, llama_4_scaling_beta=0.0)
case("ministral3", MINISTRAL3, lengths=(29, 36), mutants=[NO_BETA, ropes(SCALED, mscale=0.5)])
UNROTATED = dict(SCALED, rope_type="default", llama_4_scaling_beta=0.3, original_max_position_embeddings=5)
case(
    "ministral3_sliding",
    dict(MINISTRAL3, sliding_window=11, tie_word_embeddings=True, rope_parameters=UNROTATED),
    lengths=(31, 26),
    mutants=[dict(sliding_window=w) for w in (None, 10, 12)]
    + [ropes(UNROTATED, original_max_position_embeddings=n) for n in (4, 6)],
)
case(
    "ministral3_mqa",
    dict(
        MINISTRAL3, num_key_value_heads=1, num_hidden_layers=3, head_dim=8,
        rope_parameters=dict(SCALED, mscale_all_dim=0.5, original_max_position_embeddings=16),
    ),
    lengths=(28, 33),
    mutants=[NO_BETA],
)  # fmt: skip
case(
    "mistral3_ministral3",
    with_images(
        "mistral3", MINISTRAL3,
        dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
             num_attention_heads=2, patch_size=2, image_size=4),
        image_token_index=0,
    ),
    lengths=(30, 25),
)  # fmt: skip


def qwen3_vl_moe(name: str, lengths: Lengths, layout: Config, **over: Any) -> None:
    text = dict(
        WITH_IMAGES, model_type="qwen3_vl_moe_text", head_dim=8, moe_intermediate_size=8,
        num_experts=6, num_experts_per_tok=2, **MROPE,
    )  # fmt: skip
    eyes = dict(EYES, hidden_size=8, num_position_embeddings=16, deepstack_visual_indexes=[])
    config = with_images("qwen3_vl_moe", {**text, **over}, eyes, **IMAGE_IDS)
    case(name, config, lengths=lengths, **layout)


# Published checkpoints have the experts by input, and those that transformers 5 writes by output.
BY_INPUT = dict(layout="experts_by_input")
qwen3_vl_moe("qwen3_vl_moe", (29, 24), BY_INPUT)
qwen3_vl_moe(
    "qwen3_vl_moe_sparse", (31, 26), {},
    mlp_only_layers=[0], attention_bias=True, num_hidden_layers=3,
)  # fmt: skip
qwen3_vl_moe(
    "qwen3_vl_moe_one_expert", (27, 32), BY_INPUT,
    num_experts=4, num_experts_per_tok=1, num_key_value_heads=1,
)  # fmt: skip
