"""The cases of Gemma 4, whose layers without a window have other heads."""

from bases import LLAMA, Config, case
from cases_images import with_images

FULL = dict(rope_type="proportional", rope_theta=500.0, partial_rotary_factor=0.5)
SLIDING = dict(rope_type="default", rope_theta=100.0)
GEMMA4 = dict(
    LLAMA, model_type="gemma4_text", head_dim=8, global_head_dim=16, num_global_key_value_heads=1,
    attention_k_eq_v=True, hidden_size_per_layer_input=0, num_hidden_layers=3, sliding_window=9,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    rope_parameters=dict(full_attention=FULL, sliding_attention=SLIDING), final_logit_softcapping=5.0,
    rms_norm_eps=1e-3, pad_token_id=0, intermediate_size=28, vocab_size=53, tie_word_embeddings=True,
)  # fmt: skip


def full(**over: object) -> Config:
    """Returns a change of the rotation of layers without a window."""
    return dict(rope_parameters=dict(full_attention=dict(FULL, **over)))


def config_of_layers(config: Config) -> Config:
    """Names the heads of layers without a window as published files do."""
    own = config.pop("per_layer_config")["2"]
    config["global_head_dim"] = own["head_dim"]
    config["num_global_key_value_heads"] = own["num_key_value_heads"]
    return config


case(
    "gemma4_text",
    GEMMA4,
    lengths=(30, 37),
    mutants=[
        dict(sliding_window=8),
        dict(final_logit_softcapping=None),
        full(partial_rotary_factor=0.25),
        full(partial_rotary_factor=1.0),
        full(rope_type="default"),
        full(factor=2.0),
        full(rope_theta=100.0),
        dict(hidden_activation="silu"),
    ],
)
# Values have projections of their own, and the layers without a window have usual key heads.
case(
    "gemma4_values",
    dict(
        GEMMA4, attention_k_eq_v=False, attention_bias=True, final_logit_softcapping=None, hidden_size=24,
        layer_types=["full_attention", "sliding_attention", "full_attention"], tie_word_embeddings=False,
        rope_parameters=dict(full_attention=dict(FULL, factor=2.0), sliding_attention=SLIDING),
    ),
    lengths=(28, 33),
    mutants=[dict(sliding_window=10), full(factor=1.0)],
)  # fmt: skip
EXPERTS = dict(enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=8, intermediate_size=12)
case(
    "gemma4_experts",
    dict(
        {**GEMMA4, **EXPERTS}, num_hidden_layers=2, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"],
    ),
    lengths=(29, 34),
    mutants=[dict(top_k_experts=1), dict(top_k_experts=3), dict(sliding_window=8)],
)  # fmt: skip
# Matrices of experts that are square, and a layer without a window before the last one.
case(
    "gemma4_square_experts",
    dict(
        {**GEMMA4, **EXPERTS}, moe_intermediate_size=16, num_experts=4, top_k_experts=2, num_hidden_layers=2,
        layer_types=["full_attention", "full_attention"], tie_word_embeddings=False, final_logit_softcapping=None,
        vocab_size=37, global_head_dim=8,
    ),
    lengths=(27, 32),
    mutants=[dict(top_k_experts=1)],
)  # fmt: skip
# As E2B: the last layers read the caches of earlier ones and have wider MLPs, and there are embeddings for each
# layer. An epsilon that keeps the many norms from amplifying rounding errors.
LAYER_INPUTS = dict(
    GEMMA4, hidden_size=16, intermediate_size=12, num_hidden_layers=5, final_logit_softcapping=4.0,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    hidden_size_per_layer_input=6, vocab_size_per_layer_input=53, attention_k_eq_v=False, num_key_value_heads=1,
    rms_norm_eps=0.2,
)  # fmt: skip
case(
    "gemma4_e2b",
    dict(LAYER_INPUTS, num_kv_shared_layers=2, use_double_wide_mlp=True),
    lengths=(31, 36),
    mutants=[dict(sliding_window=8), dict(hidden_activation="silu"), full(rope_theta=100.0)],
)
# As E4B in a model with images: MLPs of one width, two key heads, and only one layer of each kind with a cache.
case(
    "gemma4_e4b",
    with_images(
        "gemma4",
        dict(LAYER_INPUTS, num_kv_shared_layers=2, num_key_value_heads=2, vocab_size=37, num_hidden_layers=4,
             vocab_size_per_layer_input=37,
             layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        dict(model_type="gemma4_vision", hidden_size=8, intermediate_size=8, num_hidden_layers=1, head_dim=8,
             num_attention_heads=1, num_key_value_heads=1, patch_size=2, position_embedding_size=4),
        image_token_id=0, video_token_id=0, audio_token_id=0, boi_token_id=1, eoi_token_id=2, boa_token_id=1,
        eoa_token_index=2,
    ),
    lengths=(27, 34),
)  # fmt: skip
# Embeddings for each layer in a model whose layers all have caches.
case(
    "gemma4_layer_inputs",
    dict(
        LAYER_INPUTS, num_hidden_layers=3, hidden_size=20, hidden_size_per_layer_input=4, attention_bias=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], final_logit_softcapping=None,
        tie_word_embeddings=False,
    ),
    lengths=(28, 33),
    mutants=[dict(sliding_window=10), dict(hidden_activation="silu")],
)  # fmt: skip
case(
    "gemma4_images",
    with_images(
        "gemma4",
        dict(GEMMA4, vocab_size=37, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
             tie_word_embeddings=False),
        dict(model_type="gemma4_vision", hidden_size=8, intermediate_size=8, num_hidden_layers=1, head_dim=8,
             num_attention_heads=1, num_key_value_heads=1, patch_size=2, position_embedding_size=4),
        image_token_id=0, video_token_id=0, audio_token_id=0, boi_token_id=1, eoi_token_id=2, boa_token_id=1,
        eoa_token_index=2, tie_word_embeddings=False,
    ),
    lengths=(26, 33),
)  # fmt: skip
