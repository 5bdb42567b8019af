"""Writes golden checkpoints as GGUF files, with the package gguf.

    python3 make_gguf.py

`../golden-gguf/CASE.gguf` has the weights of `../golden/CASE` in single precision, so that its logits
are those of the checkpoint. Names come from the package's `TensorNameMap`. What a converter changes
is described in `convert_hf_to_gguf.py` of llama.cpp, and done here again: rows of query and key are
reordered for `llama` and `granite`, 1 is added to Gemma's norms, and experts are stacked.
"""

import json
from pathlib import Path

import gguf
import numpy as np

from read_quantized import load, numbers

HERE = Path(__file__).resolve().parent.parent
CASES = {
    "llama_gqa": "llama", "llama_tied": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "mixtral": "llama",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "granite": "granite", "cohere": "command-r",
    "cohere_qk_norm": "command-r", "starcoder2": "starcoder2", "stablelm": "stablelm",
    "stablelm_bias": "stablelm", "olmo2": "olmo2",
}


def halves_to_pairs(rows, heads):
    """Reorders the rows of query or key."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def tensors(case, config, architecture):
    """All tensors under the names that the converter looks up, stacked and reordered."""
    stored = {
        name: np.array(numbers(tensor), "<f4").reshape(tensor[1]) for name, tensor in load(HERE / "golden" / case).items()
    }
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    found, experts = {}, {}
    for name, tensor in stored.items():
        if architecture in ("llama", "granite"):
            if name.endswith(("q_proj.weight", "q_proj.bias")):
                tensor = halves_to_pairs(tensor, heads)
            if name.endswith(("k_proj.weight", "k_proj.bias")):
                tensor = halves_to_pairs(tensor, kv_heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + np.float32(1)
        if ".experts." in name:
            before, after = name.split(".experts.")
            index, matrix, _ = after.split(".")
            if matrix in ("w1", "w2", "w3"):
                before = before.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
            experts.setdefault(f"{before}.experts.{matrix}.weight", {})[int(index)] = tensor
            continue
        if name.endswith("shared_expert_gate.weight"):
            tensor = tensor.reshape(-1)
        found[name] = tensor
    for name, of_experts in experts.items():
        found[name] = np.stack([of_experts[index] for index in range(len(of_experts))])
    return found


def write(case, architecture):
    config = json.loads((HERE / "golden" / case / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    full, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    writer = gguf.GGUFWriter(HERE / "golden-gguf" / f"{case}.gguf", architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(head * full.get("partial_rotary_factor", 1.0)))
    if config.get("head_dim"):
        writer.add_key_length(head)
        writer.add_value_length(head)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "query_pre_attn_scalar" in config:
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    if local:
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 3)
        writer.add_float32("gemma3.rope.freq_base_swa", local["rope_theta"])
    if architecture == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture == "command-r":
        writer.add_logit_scale(config["logit_scale"])
    if architecture == "stablelm":
        writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{token}" for token in range(config["vocab_size"])])
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, tensor in tensors(case, config, architecture).items():
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, f"{case}: {name} has no name"
        writer.add_tensor(new, np.ascontiguousarray(tensor, "<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    (HERE / "golden-gguf").mkdir(exist_ok=True)
    for case, architecture in CASES.items():
        write(case, architecture)
        size = (HERE / "golden-gguf" / f"{case}.gguf").stat().st_size
        print(f"{case}: {size} bytes")
        assert size < 150_000, case


main()
