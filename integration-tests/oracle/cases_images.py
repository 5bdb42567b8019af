"""The test cases of the text parts of models that read images. The tensors of the other parts are
in the files."""

from typing import Any

from bases import GLM, LLAMA, Config, case, ropes
from cases_dense import GEMMA3

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
