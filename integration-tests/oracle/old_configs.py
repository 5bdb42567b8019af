"""Rewrites config.json in the format of transformers 4 and older."""

from typing import Any

Config = dict[str, Any]


def v4(config: Config, alias: str = "rope_type") -> Config:
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.44.2"
    params = config.pop("rope_parameters")
    config["rope_theta"] = params.pop("rope_theta")
    if "partial_rotary_factor" in params:
        config["partial_rotary_factor"] = params.pop("partial_rotary_factor")
    kind = params.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {alias: kind, **params}
    config.pop("layer_types", None)
    return config


def v4_type(config: Config) -> Config:
    return v4(config, alias="type")


def v4_oldest(config: Config) -> Config:
    config = v4(config)
    for key in (
        "attention_bias", "attention_dropout", "head_dim", "mlp_bias", "num_key_value_heads",
        "pretraining_tp", "rope_scaling", "rope_theta", "tie_word_embeddings",
    ):  # fmt: skip
        del config[key]
    return config


def v4_unused_window(config: Config) -> Config:
    return dict(v4(config), sliding_window=6, use_sliding_window=False, max_window_layers=1)
