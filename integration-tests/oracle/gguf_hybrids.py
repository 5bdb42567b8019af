"""What is different in GGUF files of models with recurrent layers.

The converter of llama.cpp de-interleaves the projections of Qwen3-Next, and reorders the value
heads of Qwen3.5: those of a key head follow each other in the original model, and are `key heads`
apart in the file.
"""

import numpy as np

DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next")
MAMBAS = ("granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1", "mamba2")


def blocks(config):
    """Rows of queries (or keys) and of values."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return keys, config["linear_num_value_heads"] * config["linear_value_head_dim"]


def strided(rows, config, of_head):
    """Reorders the value heads, each of `of_head` rows."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    split = rows.reshape(keys, heads // keys, of_head, -1)
    return split.swapaxes(0, 1).reshape(rows.shape)


def ungrouped(tensor, config):
    """Query, key, value and gate, each for all heads, from a projection with those of a key head together."""
    heads = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    key = config["linear_key_head_dim"]
    groups = tensor.reshape(heads, 2 * key + 2 * each, -1)
    parts = np.split(groups, [key, 2 * key, 2 * key + each], axis=1)
    return [part.reshape(-1, tensor.shape[1]) for part in parts]


def delta_net(name, tensor, config, architecture):
    """The tensors of a gated delta net that are made from one, by name."""
    before, rest = name.split(".linear_attn.")
    before += ".linear_attn."
    if rest == "in_proj_qkvz.weight":
        *mixed, gate = ungrouped(tensor, config)
        return {before + "in_proj_qkv.weight": np.concatenate(mixed), before + "in_proj_z.weight": gate}
    if architecture.startswith("qwen35"):
        features, keys = config["linear_value_head_dim"], 2 * blocks(config)[0]
        if rest in ("in_proj_qkv.weight", "conv1d.weight"):
            tensor = np.concatenate([tensor[:keys], strided(tensor[keys:], config, features)])
        if rest == "in_proj_z.weight":
            tensor = strided(tensor, config, features)
        if rest in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            tensor = strided(tensor, config, 1)
        if rest == "out_proj.weight":
            tensor = strided(tensor.T, config, features).T
    if rest == "A_log":
        tensor = -np.exp(tensor)
    return {before + rest.replace("dt_bias", "dt_proj.bias"): tensor}


def add_delta_net(writer, config, case, architecture):
    """The keys of gated delta nets."""
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(blocks(config)[1])
    if case == "qwen3_5_text":
        writer.add_full_attention_interval(4)
    else:
        kinds = [kind == "linear_attention" for kind in config["layer_types"]]
        if case in ("qwen3_5", "qwen3_5_moe_text"):
            kinds.append(False)
        writer.add_array(f"{architecture}.attention.recurrent_layers", kinds)


def mamba(name, tensor, config):
    """A tensor of a Mamba-2 layer: a norm by group, and speeds and skips in columns of one."""
    if name.endswith("A_log"):
        tensor = -np.exp(tensor).reshape(-1, 1)
    if name.endswith(".D"):
        tensor = tensor.reshape(-1, 1)
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        tensor = tensor.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt.bias" if ".mixer." in name else "dt_proj.bias")
    return name, tensor


def multiplied(name, tensor, config):
    """A tensor of Falcon-H1 with the factors on what goes in or comes out."""
    attention, gate_down = config["attention_in_multiplier"], config["mlp_multipliers"]
    factors = {
        "feed_forward.gate_proj": gate_down[0],
        "feed_forward.down_proj": gate_down[1],
        "self_attn.q_proj": attention,
        "self_attn.k_proj": attention * config["key_multiplier"],
        "self_attn.v_proj": attention,
        "self_attn.o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    if name.endswith("mamba.in_proj.weight"):
        groups, heads = config["mamba_n_groups"] * config["mamba_d_state"], config["mamba_n_heads"]
        width = tensor.shape[0] - 2 * groups - heads
        rows = [width // 2, width // 2, groups, groups, heads]
        return tensor * np.repeat(config["ssm_multipliers"], rows)[:, None] * config["ssm_in_multiplier"]
    return tensor * next((factor for part, factor in factors.items() if f"{part}." in name), 1.0)


def add_mamba(writer, config, architecture):
    """The keys of Mamba-2 layers."""
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads") or config["num_heads"]
    writer.add_ssm_conv_kernel(config.get("mamba_d_conv") or config["conv_kernel"])
    writer.add_ssm_state_size(config.get("mamba_d_state") or config.get("ssm_state_size") or config["state_size"])
    writer.add_ssm_group_count(config.get("mamba_n_groups") or config["n_groups"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * (config.get("mamba_d_head") or config["mamba_head_dim"]))
    if architecture == "granitehybrid":
        # The converter says by this key whether there are positions.
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        if config["num_local_experts"]:
            writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if architecture == "nemotron_h_moe":
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
