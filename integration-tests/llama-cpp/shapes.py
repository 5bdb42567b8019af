"""The shapes of models that Millrace and llama.cpp are compared on, and their random weights as GGUF files.

`shapes.py SHAPE FILE` writes the weights in bfloat16 to FILE. It runs in the virtual environment that llama.install() makes. A shape is a
folder of integration-tests/benches with a config.json; Millrace reads that file, and fills the weights in itself.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "benches"


def folder(shape):
    return FOLDER / shape


def common_keys(writer, config):
    """Writes the keys that all shapes have."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def mlp(config):
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return {"ffn_gate.weight": (width, hidden), "ffn_up.weight": (width, hidden), "ffn_down.weight": (hidden, width)}


def llama_keys(writer, config):
    common_keys(writer, config)
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_theta"])


def llama_layer(config, _layer):
    hidden = config["hidden_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    return {
        "attn_norm.weight": (hidden,), "attn_q.weight": (hidden, hidden), "attn_k.weight": (kv, hidden), "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, hidden), "ffn_norm.weight": (hidden,), **mlp(config),
    }


def qwen35_keys(writer, config):
    common_keys(writer, config)
    rope, keys = config["rope_parameters"], config["linear_key_head_dim"]
    assert keys == config["linear_value_head_dim"], "llama.cpp has one size of recurrent heads"
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(keys)
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(keys * config["linear_num_value_heads"])
    writer.add_full_attention_interval(config["full_attention_interval"])


def qwen35_layer(config, layer):
    hidden = config["hidden_size"]
    norms = {"attn_norm.weight": (hidden,), "post_attention_norm.weight": (hidden,)}
    attends = (layer + 1) % config["full_attention_interval"] == 0
    mixer = gated_attention(config) if attends else gated_delta_net(config)
    return {**norms, **mixer, **mlp(config)}


def gated_attention(config):
    hidden, head = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    # The rows of queries and of their gates are in one matrix.
    return {
        "attn_q.weight": (2 * query, hidden), "attn_k.weight": (kv, hidden), "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, query), "attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,),
    }


def gated_delta_net(config):
    hidden, head = config["hidden_size"], config["linear_key_head_dim"]
    key, value_heads = config["linear_num_key_heads"] * head, config["linear_num_value_heads"]
    value = value_heads * head
    return {
        "attn_qkv.weight": (2 * key + value, hidden), "attn_gate.weight": (value, hidden),
        "ssm_conv1d.weight": (2 * key + value, config["linear_conv_kernel_dim"]), "ssm_dt.bias": (value_heads,), "ssm_a": (value_heads,),
        "ssm_beta.weight": (value_heads, hidden), "ssm_alpha.weight": (value_heads, hidden), "ssm_norm.weight": (head,),
        "ssm_out.weight": (hidden, value),
    }


# llama.cpp's architecture of each shape, what writes its keys, and the tensors of a layer.
SHAPES = {
    "llama-1.1b": ("llama", llama_keys, llama_layer),
    "qwen3.5-0.8b": ("qwen35", qwen35_keys, qwen35_layer),
}


def tensors_of(config, layer_tensors):
    """Returns the shape of each tensor of the file, by its name."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    tensors = {"token_embd.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        tensors.update({f"blk.{layer}.{name}": shape for name, shape in layer_tensors(config, layer).items()})
    tensors["output_norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        tensors["output.weight"] = (vocab, hidden)
    return tensors


def is_float32(name, shape):
    """Tells whether llama.cpp wants a tensor in float32."""
    return len(shape) == 1 or "ssm_conv1d" in name


def values_of(name, shape, random):
    """Makes the numbers of one tensor."""
    import numpy as np

    if len(shape) == 1:
        # `ssm_a` is the negative rate at which a state decays.
        return np.full(shape, -1 if name.endswith("ssm_a") else 1, np.float32)
    values = random.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
    # The upper half of a float32 is a bf16.
    return values if is_float32(name, shape) else (values.view(np.uint32) >> 16).astype(np.uint16)


def add_vocabulary(writer, size):
    """Writes a vocabulary. The benchmarks use random token ids, so any does."""
    import gguf

    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"t{i}" for i in range(259, size))])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * (size - 259))


def write_bf16(shape, path):
    """Writes a shape with random weights. Runs in the virtual environment."""
    import gguf
    import numpy as np

    architecture, add_keys, layer_tensors = SHAPES[shape]
    config = json.loads((folder(shape) / "config.json").read_text())
    part = pathlib.Path(f"{path}.part")
    writer = gguf.GGUFWriter(str(part), architecture)
    add_keys(writer, config)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer, config["vocab_size"])
    tensors = tensors_of(config, layer_tensors)
    for name, dims in tensors.items():
        size, kind = (4, gguf.GGMLQuantizationType.F32) if is_float32(name, dims) else (2, gguf.GGMLQuantizationType.BF16)
        dtype = np.dtype(np.float32 if size == 4 else np.uint16)
        writer.add_tensor_info(name, list(dims), dtype, size * int(np.prod(dims)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    for name, dims in tensors.items():
        writer.write_tensor_data(values_of(name, dims, random))
    writer.close()
    part.rename(path)


if __name__ == "__main__":
    write_bf16(sys.argv[1], pathlib.Path(sys.argv[2]))
