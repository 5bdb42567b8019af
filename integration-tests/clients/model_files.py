"""Writes a model as a file of another format, and the weights of that file as safetensors.

model_files.py FORMAT FROM TO

FROM is a folder with a Llama: config.json, model.safetensors in float32 or bfloat16, tokenizer.json.
TO gets two folders: `file` with the model in FORMAT and a copy of the tokenizer, and `twin` with the
same weights, dequantized by the format's own library, in Hugging Face layout.

FORMAT is `llama2.c-0`, `-1` or `-2`, `flm-` and f32, f16, int8, int4 or int4g, `ggjt-` or `ggmf-` and a type, or a type of GGUF's package: F32, F16, BF16, Q8_0 and so on. `K`
and `IQ` take a FROM without weights: they make random blocks of all types of super-blocks and tables,
several of them in one layer, because the package cannot quantize to them.
"""

import json
import pathlib
import shutil
import struct
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

# The types of each matrix, in the order of LAYER, for the two sets of types without a quantizer.
SETS = {
    "K": ["Q4_K", "Q4_K", "Q6_K", "Q2_K", "Q4_K", "Q4_K", "Q5_K"],
    "IQ": ["IQ4_XS", "IQ4_XS", "IQ4_XS", "IQ4_NL", "Q3_K", "Q6_K", "MXFP4"],
}

# The places of the float16 numbers in the blocks of these types.
HALVES = {
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0], "IQ4_NL": [0],
}


def read_safetensors(path):
    """Returns the tensors of a file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, info in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        if info["dtype"] == "BF16":
            numbers = (np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16).view("<f4")
        else:
            numbers = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2"}[info["dtype"]]).astype("<f4")
        tensors[name] = numbers.reshape(info["shape"])
    return tensors


def write_safetensors(path, tensors):
    """Writes tensors as float32."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + 4 * tensor.size]}
        at += 4 * tensor.size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").tobytes())


def interleaved(rows, heads):
    """Reorders the rows of query or key from halves of a head to pairs."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def random_blocks(generator, rows, cols, kind):
    """Returns random blocks of a type whose weights have a usual size."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)

    def scaled(scale):
        for place in HALVES.get(kind.name, []):
            blocks[:, place:place + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        return gguf.quants.dequantize(blocks, kind)

    if kind == Type.MXFP4:
        blocks[:, 0] = generator.integers(119, 122, len(blocks))
        return blocks.reshape(rows, -1)
    scaled(np.float16(0.05 / np.std(scaled(1.0))))
    return blocks.reshape(rows, -1)


def random_model(config, types):
    """Returns quantized random matrices, and the weights that they stand for."""
    generator = np.random.default_rng(7)
    hidden, width, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = (config[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {
        "attn_q": (query, hidden), "attn_k": (key, hidden), "attn_v": (key, hidden), "attn_output": (hidden, query),
        "ffn_gate": (width, hidden), "ffn_up": (width, hidden), "ffn_down": (hidden, width),
    }
    blocks, weights = {}, {"model.norm.weight": np.ones(hidden, "<f4")}
    weights["model.embed_tokens.weight"] = generator.normal(0, 0.05, (config["vocab_size"], hidden)).astype("<f4")
    for layer in range(config["num_hidden_layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            scales = generator.normal(1, 0.1, hidden).astype("<f4")
            weights[f"model.layers.{layer}.{LAYER[norm]}.weight"] = scales
        for (name, shape), kind in zip(shapes.items(), types):
            kind = Type[kind]
            quantized = random_blocks(generator, *shape, kind)
            blocks[f"model.layers.{layer}.{LAYER[name]}.weight"] = (quantized, kind)
    return blocks, weights


def quantized_model(weights, kind):
    """Quantizes the matrices whose rows are whole blocks. The others stay as they are."""
    blocks = {}
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for name, tensor in list(weights.items()):
        if tensor.ndim == 2 and tensor.shape[1] % block == 0:
            blocks[name] = (gguf.quants.quantize(tensor, kind), kind)
            del weights[name]
    return blocks, weights


def add_vocabulary(writer, source, size):
    """Adds the pieces of a tokenizer that was converted from SentencePiece, or names for the tokens
    of another one."""
    writer.add_tokenizer_model("llama")
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    if not model.get("byte_fallback"):
        writer.add_token_list([f"t{token}" for token in range(size)])
        return
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    rank = {a + b: rank for rank, (a, b) in enumerate(model["merges"])}
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank.get(token, len(rank))) for token in tokens])
    writer.add_token_types([kinds.get(t, 6 if t.startswith("<0x") else 1) for t in tokens])


def write_gguf(path, source, config, blocks, weights):
    """Writes a GGUF file as the converter of llama.cpp does."""
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    add_vocabulary(writer, source, config["vocab_size"])
    if config["bos_token_id"] is not None:
        writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    outer = {
        "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    inner = {to: f"{name}.weight" for name, to in LAYER.items()}

    def translate(name):
        if name in outer:
            return outer[name]
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{inner[rest.removesuffix('.weight')]}"

    everything = {name: (tensor, None) for name, tensor in weights.items()} | blocks
    for name, (tensor, kind) in everything.items():
        for projection, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if f".{projection}." in name:
                tensor = interleaved(tensor, count)
        writer.add_tensor(translate(name), tensor, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_ggml(path, container, config, blocks, weights):
    """Writes a GGJT file of version 3, or a GGMF file, as llama.cpp's converter did."""
    names = {
        "attn_norm": "attention_norm", "attn_q": "attention.wq", "attn_k": "attention.wk", "attn_v": "attention.wv",
        "attn_output": "attention.wo", "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
    }
    outer = {
        "model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight",
        "lm_head.weight": "output.weight",
    }
    inner = {LAYER[name]: old for name, old in names.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    head = {"ggjt": b"tjgg" + struct.pack("<I", 3), "ggmf": b"fmgg" + struct.pack("<I", 1)}[container]
    sizes = [vocabulary, hidden, 256, heads, config["num_hidden_layers"], hidden // heads, 0]
    data = bytearray(head + struct.pack("<7I", *sizes))
    for token in range(vocabulary):
        text = f"t{token}".encode()
        data += struct.pack("<I", len(text)) + text + struct.pack("<f", -token)
    everything = {name: (tensor, Type.F32) for name, tensor in weights.items()} | blocks
    for name, (tensor, kind) in everything.items():
        for projection, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if f".{projection}." in name:
                tensor = interleaved(tensor, count)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        # The package returns blocks as bytes, and numbers as numbers.
        axes = [tensor.shape[-1] * tensor.itemsize // size * elements, *tensor.shape[-2::-1]]
        if name in outer:
            name = outer[name]
        else:
            _, _, layer, rest = name.split(".", 3)
            name = f"layers.{layer}.{inner[rest.removesuffix('.weight')]}.weight"
        text = name.encode()
        data += struct.pack(f"<3I{len(axes)}I", len(axes), len(text), int(kind), *axes) + text
        if container == "ggjt":
            data += bytes(-len(data) % 32)
        data += np.ascontiguousarray(tensor).tobytes()
    path.write_bytes(data)


def write_llama2c(path, version, config, weights):
    """Writes a checkpoint of llama2.c. Returns the weights that it stands for."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, positions = config["hidden_size"], config["max_position_embeddings"]
    stored = {}

    def stack(name):
        tensors = []
        for layer in range(config["num_hidden_layers"]):
            full = f"model.layers.{layer}.{LAYER[name]}.weight"
            tensor = weights[full]
            if name in ("attn_q", "attn_k"):
                tensor = interleaved(tensor, heads if name == "attn_q" else kv_heads)
            tensors.append((full, tensor))
        return tensors

    def floats(tensors):
        return b"".join(np.ascontiguousarray(tensor, "<f4").tobytes() for _, tensor in tensors)

    def bytes_of_groups(tensors):
        parts = []
        for name, tensor in tensors:
            groups = tensor.reshape(-1, group)
            scales = np.abs(groups).max(1, keepdims=True).astype("<f4") / np.float32(127)
            codes = np.round(groups / scales).astype(np.int8)
            # The twin has the rows in the usual order.
            exact = (codes * scales).reshape(tensor.shape)
            for projection, count in (("q_proj", heads), ("k_proj", kv_heads)):
                if f".{projection}." in name:
                    exact = exact.reshape(count, -1, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
            stored[name] = exact
            parts += [codes.tobytes(), scales.tobytes()]
        return b"".join(parts)

    sizes = [
        hidden, config["intermediate_size"], config["num_hidden_layers"], heads, kv_heads, config["vocab_size"], positions,
    ]
    embedding = [("model.embed_tokens.weight", weights["model.embed_tokens.weight"])]
    norm = [("model.norm.weight", weights["model.norm.weight"])]
    attention = [stack(name) for name in ("attn_q", "attn_k", "attn_v", "attn_output")]
    mlp = [stack(name) for name in ("ffn_gate", "ffn_down", "ffn_up")]
    norms = [stack("attn_norm"), stack("ffn_norm")]
    if version == 0:
        order = [embedding, norms[0], *attention, norms[1], *mlp, norm]
        data = struct.pack("<7i", *sizes) + b"".join(map(floats, order))
        path.write_bytes(data + bytes(4 * positions * (hidden // heads)))
        return weights
    header = b"24ka" + struct.pack("<i7iB", version, *sizes, 1)
    group = 4
    if version == 2:
        header += struct.pack("<i", group)
    matrices = bytes_of_groups if version == 2 else floats
    order = [*map(floats, [*norms, norm]), *map(matrices, [embedding, *attention, *mlp])]
    path.write_bytes(header.ljust(256, b"\0") + b"".join(order))
    return weights | stored


def ranges(tensor, bits):
    """Returns the ranges of rows, their scales and zero points, and the codes, as FastLLM reads them."""
    largest = np.float32(2**bits - 1)
    low, high = np.minimum(tensor.min(1), 0), np.maximum(tensor.max(1), 0)
    scales = (high - low) / largest
    zeros = np.floor(-low / scales + np.float32(0.5)).clip(0, largest).astype("<f4")
    codes = np.round(tensor / scales[:, None] + zeros[:, None]).clip(0, largest)
    exact = (codes - zeros[:, None]) * scales[:, None]
    return np.stack([low, high], 1).astype("<f4"), codes.astype(np.uint8), exact.astype("<f4")


def write_flm(path, kind, source, config, weights):
    """Writes a file of FastLLM. Returns the weights that it stands for."""

    def text(value):
        data = str(value).encode()
        return struct.pack("<i", len(data)) + data

    stored = {}
    keys = config | {"tokenizer_use_score": "1", "tokenizer_add_dummy_prefix": "1"}
    data = struct.pack("<2i", 2, len(keys)) + b"".join(text(key) + text(keys[key]) for key in sorted(keys))
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    rank = {a + b: rank for rank, (a, b) in enumerate(model["merges"])}
    data += struct.pack("<i", len(model["vocab"]))
    for token, index in model["vocab"].items():
        words = np.frombuffer(token.encode(), np.int8).astype("<i4").tobytes()
        data += struct.pack("<i", len(words) // 4) + words
        data += struct.pack("<if", index, -float(rank.get(token, len(rank))))
    data += struct.pack("<i", len(weights))
    types = {"f32": 0, "f16": 7, "int8": 3, "int4": 4, "int4g": 9}
    for name, tensor in weights.items():
        is_linear = tensor.ndim == 2 and "embed" not in name
        data += text(name) + struct.pack(f"<{1 + tensor.ndim}i", tensor.ndim, *tensor.shape)
        data += struct.pack("<i", types[kind] if is_linear else 0)
        if not is_linear or kind == "f32":
            data += tensor.astype("<f4").tobytes()
        elif kind == "f16":
            stored[name] = tensor.astype("<f2").astype("<f4")
            data += tensor.astype("<f2").tobytes()
        else:
            # Groups of 4 divide all rows.
            group = 4 if kind == "int4g" else tensor.shape[1]
            limits, codes, exact = ranges(tensor.reshape(-1, group), 8 if kind == "int8" else 4)
            stored[name] = exact.reshape(tensor.shape)
            data += struct.pack("<i", 0)
            if kind == "int4g":
                data += struct.pack("<2i", tensor.shape[1] // group, group)
            codes = codes.reshape(-1)
            data += limits.tobytes()
            data += (codes if kind == "int8" else codes[::2] << 4 | codes[1::2]).tobytes()
    path.write_bytes(data)
    return weights | stored


def main():
    kind, source, target = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    config = json.loads((source / "config.json").read_text())
    config["torch_dtype"] = "float32"
    if kind in SETS:
        config |= {
            "hidden_size": 512, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 64, "num_hidden_layers": 2, "tie_word_embeddings": True,
        }
        blocks, weights = random_model(config, SETS[kind])
    else:
        weights = read_safetensors(source / "model.safetensors")
        if not kind.startswith(("llama2.c", "flm")):
            blocks, weights = quantized_model(weights, Type[kind.rsplit("-", 1)[-1]])
        if kind.startswith("gg"):
            # The files do not have these numbers.
            config |= {"rms_norm_eps": 5e-6, "max_position_embeddings": 2048}
    file, twin = target / "file", target / "twin"
    for folder in (file, twin):
        folder.mkdir(parents=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, folder / name)
    if kind.startswith("llama2.c"):
        weights = write_llama2c(file / "model.bin", int(kind[-1]), config, weights)
    elif kind.startswith("flm"):
        weights = write_flm(file / "model.flm", kind.removeprefix("flm-"), source, config, weights)
    else:
        if kind.startswith("gg"):
            write_ggml(file / "model.bin", kind[:4], config, blocks, weights)
        else:
            write_gguf(file / "model.gguf", source, config, blocks, weights)
        weights |= {name: gguf.quants.dequantize(tensor, kind) for name, (tensor, kind) in blocks.items()}
    write_safetensors(twin / "model.safetensors", weights)
    (twin / "config.json").write_text(json.dumps(config))


main()
