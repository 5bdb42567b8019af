"""The cases of Llama 4, whose attention is chunked in the layers that are rotated."""

from bases import LLAMA, case, ropes
from cases_images import with_images

LLAMA4 = dict(
    LLAMA, model_type="llama4_text", head_dim=8, intermediate_size=8, intermediate_size_mlp=20,
    num_local_experts=5, num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=2,
    attention_chunk_size=10, floor_scale=7, attn_scale=0.4, pad_token_id=0, vocab_size=53,
    rope_parameters=dict(rope_type="default", rope_theta=500.0),
)  # fmt: skip
case(
    "llama4",
    LLAMA4,
    lengths=(36, 27),
    mutants=[
        *(dict(attention_chunk_size=size) for size in (9, 11, 64)),
        dict(use_qk_norm=False),
        dict(attn_temperature_tuning=False),
        dict(floor_scale=8),
        dict(attn_scale=0.3),
        dict(no_rope_layers=[1, 1]),
    ],
)
case(
    "llama4_experts",
    dict(
        LLAMA4, num_hidden_layers=3, interleave_moe_layer_step=1, no_rope_layers=[1, 1, 1], use_qk_norm=False,
        num_local_experts=3, num_key_value_heads=1, attention_bias=True, vocab_size=37,
    ),
    lengths=(33, 26),
    mutants=[dict(attention_chunk_size=9), dict(no_rope_layers=[1, 0, 1]), dict(use_qk_norm=True)],
)  # fmt: skip
case(
    "llama4_two_experts",
    dict(
        LLAMA4, num_local_experts=4, num_experts_per_tok=2, moe_layers=[0], attn_temperature_tuning=False,
        num_key_value_heads=4, tie_word_embeddings=True, attention_chunk_size=16,
        rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    lengths=(38, 29),
    mutants=[
        dict(num_experts_per_tok=1),
        dict(attention_chunk_size=17),
        ropes(dict(rope_type="default"), factor=None),
    ],
)  # fmt: skip
# What GGUF files cannot say is as in the published models.
case(
    "llama4_published",
    dict(
        LLAMA4, num_hidden_layers=4, no_rope_layer_interval=4, attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1,
        intermediate_size_mlp=12, num_local_experts=3, num_key_value_heads=1, vocab_size=37,
    ),
    lengths=(31, 26),
    mutants=[dict(use_qk_norm=False), dict(no_rope_layers=[1, 1, 1, 1]), dict(no_rope_layers=[1, 0, 1, 0])],
)  # fmt: skip
case(
    "llama4_images",
    with_images(
        "llama4", dict(LLAMA4, vocab_size=37),
        dict(model_type="llama4_vision_model", hidden_size=8, intermediate_size=32, num_hidden_layers=1,
             num_attention_heads=1, patch_size=2, image_size=4, vision_output_dim=8,
             projector_input_dim=8, projector_output_dim=8),
        image_token_index=0, boi_token_index=1, eoi_token_index=2,
    ),
    lengths=(28, 33),
)  # fmt: skip
