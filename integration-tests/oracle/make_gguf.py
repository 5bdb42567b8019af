"""Writes golden checkpoints as GGUF files, with the package gguf.

    python3 make_gguf.py [CASE...]

`../golden-gguf/CASE.gguf` has the weights of `../golden/CASE` in single precision, so that its logits
are those of the checkpoint. Names come from the package's `TensorNameMap`. What a converter changes
is described in `convert_hf_to_gguf.py` of llama.cpp, and done here again: rows of query and key are
reordered for `llama`, `smollm3` and the models of Granite, 1 is added to Gemma's norms, and experts
are stacked. `FUSED` are written with query, key and value in one tensor, as newer converters may, and
`FUSED_EXPERTS` with gate and up. `MTP` are checkpoints of `../golden-mtp`, whose head is a later layer. `RENAMED` are files of another architecture, in a folder of its name,
that compute the same. What is different in models with recurrent layers is in
`gguf_hybrids.py`, and in others `gguf_older.py` and `gguf_recent.py`.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

import gguf_hybrids
import gguf_older
import gguf_recent
from read_quantized import load, numbers

HERE = Path(__file__).resolve().parent.parent
CASES = {
    "llama_gqa": "llama", "llama_tied": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "mixtral": "llama",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "granite": "granite", "cohere": "command-r",
    "cohere_qk_norm": "command-r", "starcoder2": "starcoder2", "stablelm": "stablelm",
    "stablelm_bias": "stablelm", "olmo2": "olmo2", "gpt_oss_one_expert": "gpt-oss", "glm4_native": "glm4",
    "glm4_native_tied": "glm4", "glm4_moe": "glm4moe", "glm4_moe_raw": "glm4moe", "minimax_m2": "minimax-m2",
    "granitemoe": "granitemoe", "granitemoe_bias": "granitemoe", "cohere2": "cohere2",
    "smollm3": "smollm3", "exaone4": "exaone4", "exaone4_hybrid": "exaone4", "seed_oss": "seed_oss",
    "seed_oss_all_biases": "seed_oss", "lfm2": "lfm2", "lfm2_bias": "lfm2", "phi": "phi2",
    "phi_rotary": "phi2", "olmo3": "olmo2", "olmo3_yarn": "olmo2", "qwen2_5_vl": "qwen2vl",
    "qwen3_vl": "qwen3vl", "qwen3_vl_moe": "qwen3vlmoe",
    "qwen3_5_text": "qwen35", "qwen3_5_text_tied": "qwen35", "qwen3_5": "qwen35",
    "granitemoehybrid": "granitehybrid", "granitemoehybrid_dense": "granitehybrid",
    "granitemoehybrid_groups": "granitehybrid", "nemotron_h": "nemotron_h",
    "nemotron_h_experts": "nemotron_h_moe",
    "gemma4_text": "gemma4", "gemma4_text_global": "gemma4", "gemma4_experts": "gemma4",
    "gemma4_e2b": "gemma4", "gemma4_e4b": "gemma4",
    "ministral3": "mistral3", "ministral3_mqa": "mistral3",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2", "lfm2_moe_tied": "lfm2moe", "dots1": "dots1", "dots1_groups": "dots1",
    "olmoe": "olmoe", "olmoe_bias": "olmoe", "arcee": "arcee", "arcee_bias": "arcee",
    "ernie4_5": "ernie4_5", "ernie4_5_bias": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe",
    "qwen3_5_moe_text": "qwen35moe", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next",
    "falcon_h1": "falcon-h1", "falcon_h1_biases": "falcon-h1", "llama4_published": "llama4",
    "hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_dense_bias": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "hunyuan_v1_moe_tied": "hunyuan-moe",
    "phi3_long": "phi3", "phi3_short": "phi3", "phimoe_published": "phimoe", "minicpm3_published": "minicpm3",
    "apertus": "apertus", "apertus_bias": "apertus", "apertus_tied": "apertus", "mistral4": "mistral4",
    "mistral4_groups": "mistral4", "youtu": "deepseek2", "youtu_tied": "deepseek2", "solar_open": "glm4moe",
    "solar_open_groups": "glm4moe", "exaone_moe": "exaone-moe", "exaone_moe_groups": "exaone-moe",
    "mamba2": "mamba2", "mamba2_tied": "mamba2", "gpt2": "gpt2", "gpt_bigcode": "starcoder",
    "gpt_neox": "gptneox", "gpt_neox_no_bias": "gptneox", "gpt_neox_sequential": "gptneox", "bloom": "bloom",
    "bloom_heads": "bloom", "falcon": "falcon", "falcon_11b": "falcon", "mpt": "mpt", "mpt_heads": "mpt",
    "glm_moe_dsa": "glm-dsa", "glm_moe_dsa_shared": "glm-dsa", "mpt_clip": "mpt",
    "stablelm_head_norms": "stablelm", "kimi_linear": "kimi-linear", "glm": "chatglm", "glm4v": "glm4",
}
# Checkpoints as files of models that differ from theirs in names only, whose families transformers has no code for.
RENAMED = {"internlm2": "llama_gqa", "qwen": "qwen2"}
# Checkpoints of `../golden-mtp` with a head of multi-token prediction, in a folder of their own.
MTP = {
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next",
    "glm4_moe": "glm4moe", "deepseek_v3": "deepseek2",
}
HEADS = "golden-mtp"
# The head is a layer after the last one in every file.
MODULE = {
    "mtp.layers.0.": "", "mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.", "mtp.norm.": "shared_head.norm.",
}
NEXTN = {
    "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm",
    "shared_head.head": "shared_head_head", "embed_tokens": "embed_tokens",
}
PERMUTED = ("llama", "internlm2", "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee")
FUSED = ("qwen3_moe", "seed_oss_all_biases", "exaone4_hybrid")
FUSED_EXPERTS = ("qwen3_5_moe_text",)
ONE_LATENT_UP = ("deepseek_v2",)
LATER = ("qwen3_5", "qwen3_5_moe_text")
LATENT = ("deepseek2", "mistral4", "glm-dsa", "kimi-linear")


def halves_to_pairs(rows, heads):
    """Reorders the rows of query or key."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def stored_tensors(case, root="golden"):
    """The tensors of the checkpoint."""
    tensors = load(HERE / root / case).items()
    return {name: np.array(numbers(tensor), "<f4").reshape(tensor[1]) for name, tensor in tensors}


def in_layer(name, layer):
    """The name of a tensor of a head as one of that layer."""
    for module, new in MODULE.items():
        if name.startswith(module):
            return f"model.layers.{layer}.{new}{name.removeprefix(module)}"
    return name


def tensors(case, config, architecture, root):
    """All tensors under the names that the converter looks up, stacked and reordered."""
    stored = stored_tensors(case, root)
    layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    heads = config.get("num_attention_heads") or config["num_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    found, experts = {}, {}
    if architecture == "stablelm":
        stored = stacked_head_norms(stored)
    for name, tensor in stored.items():
        name = in_layer(name.replace("model.language_model.", "model."), layers)
        if ".visual." in name or name.startswith(("visual.", "model.vision_tower.", "model.embed_vision.")):
            continue
        if ".act_fn." in name:
            continue
        if architecture in gguf_older.OLDER:
            tensor = gguf_older.changed(name, tensor, config, architecture)
            if architecture == "bloom":
                name = name.removeprefix("transformer.")
        if architecture in PERMUTED:
            if name.endswith(("q_proj.weight", "q_proj.bias")):
                tensor = halves_to_pairs(tensor, heads)
            if name.endswith(("k_proj.weight", "k_proj.bias")):
                tensor = halves_to_pairs(tensor, kv_heads)
        if case == "glm4v" and name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
            tensor = gguf_recent.pairs_to_halves(tensor, config)
        if architecture == "kimi-linear":
            name, tensor = gguf_recent.kimi_delta(name, tensor)
        plus_one = architecture in ("gemma", "gemma2", "gemma3", *gguf_hybrids.DELTA_NETS)
        if plus_one and name.endswith("norm.weight") and "linear_attn" not in name:
            tensor = tensor + np.float32(1)
        if name.startswith(f"model.layers.{layers}.") and root != HEADS:
            continue
        if name.endswith("e_score_correction_bias"):
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            tensor = tensor.reshape(-1)
        if name.endswith("expert_bias"):
            name += ".bias"
        if name.endswith(".sinks"):
            name += ".weight"
        if name.endswith(("conv.conv.weight", "conv1d.weight")) and architecture != "kimi-linear":
            tensor = tensor.squeeze(1)
        if architecture == "falcon-h1":
            tensor = gguf_hybrids.multiplied(name, tensor, config)
        if architecture in gguf_hybrids.MAMBAS:
            if ".mamba." in name or ".mixer." in name and ".experts." not in name:
                name, tensor = gguf_hybrids.mamba(name, tensor, config)
        if "shared_mlp.input_linear" in name:
            before = name.replace("shared_mlp.input_linear.weight", "")
            before += "mlp.shared_experts." if config["num_local_experts"] else "mlp."
            found[before + "gate_proj.weight"], found[before + "up_proj.weight"] = np.split(tensor, 2)
            continue
        if "shared_mlp.output_linear" in name and not config["num_local_experts"]:
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        if "kv_b_proj" in name and case not in ONE_LATENT_UP and architecture != "minicpm3":
            found |= keys_and_values(name, tensor, config)
            continue
        if ".linear_attn." in name:
            found |= gguf_hybrids.delta_net(name, tensor, config, architecture)
            continue
        if architecture in ("granitemoe", "granitehybrid") and name.endswith("moe.input_linear.weight"):
            half = tensor.shape[1] // 2
            before = name.replace("block_sparse_moe.input_linear.weight", "mlp.experts.")
            found[before + "gate_proj.weight"], found[before + "up_proj.weight"] = tensor[:, :half], tensor[:, half:]
            continue
        if ".experts." in name and name.endswith(("gate_up_proj", "down_proj")) and architecture == "mistral4":
            name += ".weight"
            found[name] = tensor
            continue
        if architecture in ("gpt-oss", "qwen3vlmoe", "llama4") and ".experts." in name:
            found |= experts_by_input(name, tensor, in_turns=architecture == "gpt-oss")
            continue
        if architecture == "gemma4":
            if name.endswith((".router.scale", "layer_scalar", "per_expert_scale")):
                before = ".".join(name.split(".")[1:3]).replace("layers", "blk")
                new = {"scale": "ffn_gate_inp.scale", "layer_scalar": "layer_output_scale.weight"}
                found[f"{before}.{new.get(name.split('.')[-1], 'ffn_down_exps.scale')}"] = tensor
                continue
            if ".experts." in name:
                found[name + ".weight"] = tensor
                continue
        if ".experts." in name:
            before, after = name.split(".experts.")
            index, matrix, _ = after.split(".")
            if matrix in ("w1", "w2", "w3"):
                before = before.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
            before = before.replace("backbone", "model").replace("mixer", "mlp")
            experts.setdefault(f"{before}.experts.{matrix}.weight", {})[int(index)] = tensor
            continue
        if name.endswith("shared_expert_gate.weight"):
            tensor = tensor.reshape(-1)
        found[name] = tensor
    for name, of_experts in experts.items():
        found[name] = np.stack([of_experts[index] for index in range(len(of_experts))])
    if case in FUSED_EXPERTS:
        for name in [name for name in found if name.endswith("experts.gate_proj.weight")]:
            parts = found.pop(name), found.pop(name.replace("gate_proj", "up_proj"))
            found[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(parts, axis=1)
    return found


def stacked_head_norms(stored):
    """The norms of all heads of a layer in one tensor."""
    found, norms = {}, {}
    for name, tensor in stored.items():
        before, is_norm, rest = name.partition("_layernorm.norms.")
        if is_norm:
            norms.setdefault(f"{before}_layernorm.weight", {})[int(rest.split(".")[0])] = tensor
        else:
            found[name] = tensor
    stacked = {name: np.stack([heads[head] for head in range(len(heads))]) for name, heads in norms.items()}
    return found | stacked


def experts_by_input(name, tensor, in_turns):
    """Gate and up by output feature, each by itself. Their features are in turns, or one after the other."""
    before, matrix = name.split(".experts.")
    suffix = "bias" if matrix.endswith("_bias") else "weight"
    if suffix == "weight":
        tensor = tensor.swapaxes(1, 2)
    parts = {"down_proj": tensor}
    if matrix.startswith("gate_up"):
        half = tensor.shape[1] // 2
        gate, up = (tensor[:, 0::2], tensor[:, 1::2]) if in_turns else (tensor[:, :half], tensor[:, half:])
        parts = {"gate_proj": gate, "up_proj": up}
    return {f"{before}.experts.{part}.{suffix}": part_tensor for part, part_tensor in parts.items()}


def fused(found):
    """Query, key and value in one tensor."""
    for name in [name for name in found if ".q_proj." in name]:
        parts = [found.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        found[name.replace("q_proj", "qkv")] = np.concatenate(parts)
    return found


def keys_and_values(name, tensor, config):
    """The projection of latents to keys, with the features of a head as columns, and that to values."""
    heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
    k, v = np.split(tensor.reshape(heads, -1, tensor.shape[1]), [keys], axis=1)
    return {name.replace("kv_b", "k_b"): k.swapaxes(1, 2), name.replace("kv_b", "v_b"): v}


def add_deepseek2(writer, config, case):
    """The keys of latent attention. A file with one projection from latents has the sizes of heads."""
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rotated, config["v_head_dim"]
    writer.add_kv_lora_rank(rank)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_rope_dimension_count(rotated)
    if case in ONE_LATENT_UP:
        writer.add_key_length(key)
        writer.add_value_length(value)
    else:
        writer.add_key_length(rank + rotated)
        writer.add_value_length(rank)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
        if config["model_type"] not in ("mistral4", "youtu"):
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def gemma4_heads(config):
    """The features of a head and the key/value heads of each layer."""
    own = config.get("per_layer_config") or {}
    usual = config["head_dim"], config["num_key_value_heads"]
    heads = []
    for layer, kind in enumerate(config["layer_types"]):
        of_layer = own.get(str(layer), {})
        if kind == "full_attention" and "global_head_dim" in config:
            of_layer = {"head_dim": config["global_head_dim"]}
            of_layer["num_key_value_heads"] = config["num_global_key_value_heads"]
        head, kv_heads = of_layer.get("head_dim", usual[0]), of_layer.get("num_key_value_heads", usual[1])
        heads.append((head, kv_heads))
    return heads


def add_gemma4(writer, config, full, local):
    """The keys of layers that differ, and the divisors of frequencies."""
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    writer.add_array("gemma4.attention.sliding_window_pattern", kinds)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config.get("num_kv_shared_layers", 0))
    pairs = max(head for head, _ in gemma4_heads(config)) // 2
    rotated = int(pairs * full["partial_rotary_factor"])
    divisors = np.array([1.0] * rotated + [1e30] * (pairs - rotated), "<f4")
    writer.add_tensor("rope_freqs.weight", divisors)
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])


def write(case, architecture, folder="", root="golden"):
    config = json.loads((HERE / root / case / "config.json").read_text())
    config = config.get("text_config", config)
    if architecture in gguf_older.OLDER:
        config = gguf_older.usual(config, architecture)
    if architecture == "kimi-linear":
        config = gguf_recent.usual_kimi(config)
    if architecture == "mamba2":
        sizes = {"num_attention_heads": 0, "num_key_value_heads": 0, "max_position_embeddings": 2**20}
        config = {key: value for key, value in config.items() if key != "head_dim"} | sizes | {"mamba_head_dim": config["head_dim"]}
    rope = config.get("rope_parameters") or {}
    full, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    rotates = bool(full)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    head = config.get("head_dim") or (hidden // heads if heads else 0)
    target = HERE / "golden-gguf" / folder / f"{case}.gguf"
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    # A layer that predicts one more token is counted too.
    later = int(case in LATER or root == HEADS)
    writer.add_block_count(layers + later)
    if later:
        writer.add_nextn_predict_layers(later)
    if later and root != HEADS:
        norm = f"blk.{layers}.attn_norm.weight"
        writer.add_tensor(norm, np.ones(config["hidden_size"], "<f4"))
    width = config.get("intermediate_size_mlp") or config.get("intermediate_size") or 0
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        width = -(-int(config["block_ffn_dim_multiplier"] * (2 * width // 3)) // multiple) * multiple
    if architecture == "nemotron_h_moe":
        width = [0] * layers
    elif architecture == "nemotron_h":
        width = [width if kind == "mlp" else 0 for kind in config["layers_block_type"]]
    if config.get("use_double_wide_mlp"):
        readers = config["num_kv_shared_layers"]
        width = [width] * (layers - readers) + [2 * width] * readers
    if config.get("shared_intermediate_size") and not config["num_local_experts"]:
        width = config["shared_intermediate_size"]
    if architecture == "qwen":
        width *= 2
    if width or architecture == "mamba2":
        writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    kv_heads = config["num_key_value_heads"]
    if architecture in ("lfm2", "lfm2moe"):
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config["layer_types"]]
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if architecture.startswith(("granitehybrid", "nemotron_h")):
        kinds = config.get("layer_types") or config["layers_block_type"]
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in kinds]
    if architecture == "gemma4":
        own = gemma4_heads(config)
        head, kv_heads = max(head for head, _ in own), [kv_heads for _, kv_heads in own]
    if architecture in LATENT:
        kv_heads = kv_heads if case in ONE_LATENT_UP else 1
        add_deepseek2(writer, config, case)
    if architecture == "kimi-linear":
        kv_heads = gguf_recent.add_kimi_linear(writer, config)
    writer.add_head_count_kv(kv_heads)
    if rotates:
        # The base contains Hunyuan's factor.
        growth = full.get("alpha", 1.0) ** (head / max(head - 2, 1))
        writer.add_rope_freq_base(full["rope_theta"] * growth)
    # The frequencies of features that are not rotated are divided by a huge number.
    share = 1.0 if architecture == "gemma4" else full.get("partial_rotary_factor", 1.0)
    if architecture == "minicpm3":
        writer.add_kv_lora_rank(config["kv_lora_rank"])
        writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_rope_dimension_count(config["qk_rope_head_dim"])
        writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    elif architecture not in LATENT:
        writer.add_rope_dimension_count(int(head * share))
    if config.get("head_dim") and architecture not in (*LATENT, "minicpm3"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    rms_eps = [config[key] for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if key in config]
    if rms_eps:
        writer.add_layer_norm_rms_eps(rms_eps[0])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if architecture == "gemma4":
        add_gemma4(writer, config, full, local)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    has_experts = config.get("num_local_experts") != 0 and architecture != "nemotron_h"
    if has_experts and "num_experts_per_tok" in config:
        writer.add_expert_count(
            config.get("num_experts") or config.get("n_routed_experts") or config["num_local_experts"]
        )
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if architecture == "llama4":
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "hunyuan-moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["moe_topk"])
        writer.add_expert_shared_count(1)
        for add in (writer.add_expert_feed_forward_length, writer.add_expert_shared_feed_forward_length):
            add(config["intermediate_size"])
    if architecture in gguf_hybrids.MAMBAS:
        gguf_hybrids.add_mamba(writer, config, architecture)
    if config.get("moe_intermediate_size") and architecture != "nemotron_h":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "query_pre_attn_scalar" in config:
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    if local and architecture == "gemma3":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 3)
        writer.add_float32("gemma3.rope.freq_base_swa", local["rope_theta"])
    if case in ("exaone4_hybrid", "olmo3") or architecture == "exaone-moe":
        pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
        writer.add_array(f"{architecture}.attention.sliding_window_pattern", pattern)
    if architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if "beta_fast" in full:
            writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])
    if full.get("rope_type") == "longrope":
        gguf_recent.add_long_rope(writer, full | {"longest": config["max_position_embeddings"]}, architecture)
    if full.get("rope_type") == "llama3":
        gguf_recent.add_llama3(writer, full, head)
    if architecture == "mistral4":
        writer.add_rope_scaling_yarn_log_mul(0.1 * full["mscale_all_dim"])
        writer.add_attn_temperature_scale(full["llama_4_scaling_beta"])
    if architecture == "glm-dsa":
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(full["mscale_all_dim"])
        writer.add_attn_temperature_scale(full["llama_4_scaling_beta"])
    if architecture.startswith(("qwen2vl", "qwen3vl")) or case == "glm4v":
        writer.add_rope_dimension_sections([*full["mrope_section"], 0])
    if architecture in ("glm4moe", *LATENT, "dots1", "lfm2moe", "exaone-moe"):
        dense = config.get("first_k_dense_replace", config.get("num_dense_layers", 1))
        dense = {"youtu": layers, "solar_open": 0}.get(config["model_type"], dense)
        writer.add_leading_dense_block_count(dense)
    if architecture == "ernie4_5-moe":
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
    has_shared = architecture in ("glm4moe", "nemotron_h_moe", *LATENT, "dots1", "exaone-moe")
    if has_shared and config["model_type"] != "youtu":
        writer.add_expert_shared_count(config.get("n_shared_experts") or config["num_shared_experts"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if (config.get("n_group") or 1) > 1:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if architecture in ("glm4moe", "minimax-m2", "nemotron_h_moe", "dots1", "lfm2moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture in ("granite", "granitemoe", "granitehybrid"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
    if architecture == "stablelm":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if architecture in gguf_older.OLDER:
        gguf_older.add_older(writer, config, architecture)
    if architecture == "apertus":
        gguf_recent.add_xielu(writer, stored_tensors(case), layers)
    if architecture in gguf_hybrids.DELTA_NETS:
        gguf_hybrids.add_delta_net(writer, config, case if root != HEADS else LATER[0], architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{token}" for token in range(config["vocab_size"])])
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, layers + later)
    found = tensors(case, config, architecture, root)
    if case in FUSED or architecture == "qwen":
        found = fused(found)
    for name, tensor in found.items():
        if name.startswith("blk."):
            writer.add_tensor(name, np.ascontiguousarray(tensor, "<f4"))
            continue
        if ".qkv." in name:
            writer.add_tensor(
                name.replace("model.layers", "blk").replace("self_attn.qkv", "attn_qkv"),
                np.ascontiguousarray(tensor, "<f4"),
            )
            continue
        of_head = NEXTN.get(name.removeprefix(f"model.layers.{layers}.").removesuffix(".weight"))
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if of_head and later:
            written = f"blk.{layers}.nextn.{of_head}.weight"
            assert new in (None, written), f"{case}: {new} is not {written}"
            new = written
        assert new, f"{case}: {name} has no name"
        writer.add_tensor(new, np.ascontiguousarray(tensor, "<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    (HERE / "golden-gguf").mkdir(exist_ok=True)
    for case in sys.argv[1:] or CASES:
        write(case, CASES[case])
        size = (HERE / "golden-gguf" / f"{case}.gguf").stat().st_size
        print(f"{case}: {size} bytes")
        assert size < 150_000, case
    for architecture, case in RENAMED.items():
        (HERE / "golden-gguf" / architecture).mkdir(exist_ok=True)
        write(case, architecture, architecture)
    (HERE / "golden-gguf" / "mtp").mkdir(exist_ok=True)
    for case, architecture in MTP.items():
        write(case, architecture, "mtp", HEADS)


if __name__ == "__main__":
    main()
