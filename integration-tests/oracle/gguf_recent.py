"""What is different in GGUF files of Apertus, MiniCPM3, Kimi Linear, GLM-4.1V and models with LongRoPE.

Numbers that a layer has in tensors of their own may be arrays in the file, and a file may have the
divisors of frequencies.
"""

import math

import numpy as np

XIELU = ("alpha_p", "alpha_n", "beta", "eps")


def add_xielu(writer, stored, layers):
    """The numbers of the activation function of each layer, which the file has in arrays."""
    for part in XIELU:
        numbers = [float(stored[f"model.layers.{layer}.mlp.act_fn.{part}"].reshape(-1)[0]) for layer in range(layers)]
        getattr(writer, f"add_xielu_{part}")(numbers)


def add_long_rope(writer, rope, architecture):
    """The divisors of short and of long texts."""
    for kind in ("long", "short"):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], "<f4"))
    if architecture == "minicpm3":
        return
    original = rope["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    factor = rope["longest"] / original
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    writer.add_rope_scaling_attn_factors(rope.get("short_mscale", attention))


def add_llama3(writer, rope, head):
    """The divisors of Llama 3.1: 1 for short waves, the factor for long ones, and a transition."""
    low, high, divisors = rope["low_freq_factor"], rope["high_freq_factor"], []
    for pair in range(head // 2):
        waves = rope["original_max_position_embeddings"] / (2 * math.pi * rope["rope_theta"] ** (2 * pair / head))
        share = min(max((waves - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - share) / rope["factor"] + share))
    writer.add_tensor("rope_freqs.weight", np.array(divisors, "<f4"))


def pairs_to_halves(rows, config):
    """Reorders the rows of query or key of a GLM-4.1V: the first features of pairs, then the second ones."""
    head = config["head_dim"]
    rotated = int(head * config["rope_parameters"]["partial_rotary_factor"])
    heads = rows.reshape(-1, head, *rows.shape[1:])
    parts = heads[:, 0:rotated:2], heads[:, 1:rotated:2], heads[:, rotated:]
    return np.concatenate(parts, axis=1).reshape(rows.shape)


def usual_kimi(config):
    """A configuration of Kimi Linear with the keys of other families."""
    names = {
        "max_position_embeddings": "model_max_length", "num_experts_per_tok": "num_experts_per_token",
        "n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts", "norm_topk_prob": "moe_renormalize",
    }
    return config | {usual: config[own] for usual, own in names.items()}


def add_kimi_linear(writer, config):
    """The keys of Kimi Delta Attention. Returns the key and value heads of each layer."""
    linear = config["linear_attn_config"]
    writer.add_ssm_conv_kernel(linear["short_conv_kernel_size"])
    writer.add_kda_head_dim(linear["head_dim"])
    return [int(layer + 1 in linear["full_attn_layers"]) for layer in range(config["num_hidden_layers"])]


def kimi_delta(name, tensor):
    """A tensor of Kimi Delta Attention, with the axes and the name that the converter gives it."""
    if name.endswith("conv1d.weight"):
        tensor = tensor.reshape(1, tensor.shape[0], 1, -1)
    if name.endswith(".A_log"):
        tensor = -np.exp(tensor)
    return name.replace("dt_bias", "dt_proj.bias"), tensor
