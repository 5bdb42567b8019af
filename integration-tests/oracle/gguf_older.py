"""What is different in GGUF files of the families before Llama.

Their configurations have other names for the sizes. The converter of llama.cpp transposes the
matrices of GPT-2, and puts all queries before all keys and values where the original model has
those of a key head together.
"""

import numpy as np

OLDER = ("gpt2", "starcoder", "gptneox", "bloom", "falcon", "mpt")
STACKED = ("gptneox", "bloom", "falcon")
# The usual key, and what the older families have instead.
KEYS = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "layer_norm_eps": ("layer_norm_epsilon",),
}


def usual(config, architecture):
    """The configuration with the usual keys."""
    config = dict(config)
    for key, others in KEYS.items():
        config[key] = next((config[name] for name in (key, *others) if config.get(name)), None)
    config["intermediate_size"] = config["intermediate_size"] or 4 * config["hidden_size"]
    config["max_position_embeddings"] = config["max_position_embeddings"] or 2048
    config.pop("layer_norm_epsilon", None)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    if architecture == "falcon":
        kv_heads = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    return config | {"num_key_value_heads": kv_heads}


def changed(name, tensor, config, architecture):
    """A tensor as the converter stores it."""
    if architecture == "gpt2" and ".h." in name and tensor.ndim == 2:
        return np.ascontiguousarray(tensor.T)
    if architecture in STACKED and "query_key_value" in name:
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        groups = tensor.reshape(kv_heads, heads // kv_heads + 2, config["hidden_size"] // heads, -1)
        query, key, value = np.split(groups, [heads // kv_heads, heads // kv_heads + 1], axis=1)
        return np.concatenate([part.reshape(-1, groups.shape[-1]) for part in (query, key, value)]).reshape(tensor.shape)
    return tensor


def add_older(writer, config, architecture):
    """The keys of attention and residuals."""
    if architecture == "gptneox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if architecture == "mpt":
        writer.add_max_alibi_bias(config["attn_config"]["alibi_bias_max"])
        if config["attn_config"]["clip_qkv"]:
            writer.add_clamp_kqv(config["attn_config"]["clip_qkv"])
