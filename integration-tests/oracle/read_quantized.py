"""Reads a quantized checkpoint, and prints how far its matrices are from those of the dense one.

    python3 read_quantized.py DENSE QUANTIZED

There is one JSON object for each quantized matrix, like those of `millrace quantize --json`. The
script needs nothing but Python, and shares no code with the writer: it follows the descriptions of
the formats that `quantized.py` follows. It also checks the names, types and shapes of all tensors.
"""

import json
import math
import struct
import sys
from pathlib import Path

from quantized import NF4, e4m3, single

E4M3 = [e4m3(byte) for byte in range(256)]


def load(folder):
    """All tensors of a folder, as (type, shape, bytes)."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.exists():
        names = set(json.loads(index.read_text())["weight_map"].values())
    tensors = {}
    for name in sorted(names):
        raw = (folder / name).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        assert header.pop("__metadata__") == {"format": "pt"}
        data, sizes = raw[8 + length :], {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8}
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            size = sizes.get(entry["dtype"], 1)
            assert (8 + length + begin) % size == 0, f"{tensor} is not aligned"
            assert end - begin == size * math.prod(entry["shape"]), tensor
            tensors[tensor] = entry["dtype"], entry["shape"], data[begin:end]
    return tensors


def numbers(tensor):
    dtype, shape, raw = tensor
    count = math.prod(shape)
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    codes = {"F32": "f", "F16": "e", "I8": "b", "U8": "B", "F8_E4M3": "B", "I32": "I", "I64": "q"}
    return list(struct.unpack(f"<{count}{codes[dtype]}", raw))


def expect(tensor, dtype, shape):
    assert (tensor[0], tensor[1]) == (dtype, shape), (tensor[:2], dtype, shape)
    return numbers(tensor)


def integers(config, take, rows, cols):
    weights = config["config_groups"]["group_0"]["weights"]
    if config["format"] == "int-quantized":
        codes = expect(take("weight"), "I8", [rows, cols])
        scales = expect(take("weight_scale"), "F32", [rows, 1])
        return [code * scales[i // cols] for i, code in enumerate(codes)]
    group, bits = weights["group_size"], weights["num_bits"]
    groups = cols // group
    words = expect(take("weight_packed"), "I32", [rows, cols * bits // 32])
    scales = expect(take("weight_scale"), "F16", [rows, groups])
    # Eight times the middle of the codes, if there are no zero points.
    zeros = [0x88888888] * (-(-rows // 8) * groups)
    if not weights["symmetric"]:
        zeros = expect(take("weight_zero_point"), "I32", [-(-rows // 8), groups])
    assert expect(take("weight_shape"), "I64", [2]) == [rows, cols]
    found = []
    for row in range(rows):
        line = sum(word << (32 * i) for i, word in enumerate(words[row * cols // 8 : (row + 1) * cols // 8]))
        for col in range(cols):
            at = row * groups + col // group
            zero = zeros[row // 8 * groups + col // group] >> (4 * (row % 8)) & 15
            found.append(((line >> (4 * col) & 15) - zero) * scales[at])
    return found


def float8(config, take, rows, cols):
    bytes_ = expect(take("weight"), "F8_E4M3", [rows, cols])
    assert not any(byte & 127 == 127 for byte in bytes_), "NaN"
    if config["quant_method"] == "fp8":
        down, across = config["weight_block_size"]
        shape = [-(-rows // down), -(-cols // across)]
        scales = expect(take("weight_scale_inv"), "F32", shape)
        return [E4M3[byte] * scales[i // cols // down * shape[1] + i % cols // across]
                for i, byte in enumerate(bytes_)]
    scales = expect(take("weight_scale"), "F32", [rows, 1])
    return [E4M3[byte] * scales[i // cols] for i, byte in enumerate(bytes_)]


def nf4(take, rows, cols):
    state = json.loads(take("weight.quant_state.bitsandbytes__nf4")[2])
    assert (state["quant_type"], state["shape"]) == ("nf4", [rows, cols]), state
    block, count = state["blocksize"], rows * cols
    assert expect(take("weight.quant_map"), "F32", [16]) == [single(value) for value in NF4]
    absmax = expect(take("weight.absmax"), "F32", [-(-count // block)])
    packed = expect(take("weight"), "U8", [-(-count // 2), 1])
    codes = [code for byte in packed for code in (byte >> 4, byte & 15)][:count]
    return [NF4[code] * absmax[i // block] for i, code in enumerate(codes)]


def main(dense_folder, quantized_folder):
    dense, found = load(dense_folder), load(quantized_folder)
    config = json.loads((quantized_folder / "config.json").read_text())["quantization_config"]
    for name, tensor in dense.items():
        if found.get(name) == tensor:
            del found[name]
            continue
        module = name.removesuffix(".weight")
        rows, cols = tensor[1]
        take = lambda suffix: found.pop(f"{module}.{suffix}")
        if config["quant_method"] == "bitsandbytes":
            values = nf4(take, rows, cols)
        elif config["quant_method"] == "fp8" or config["format"] == "float-quantized":
            values = float8(config, take, rows, cols)
        else:
            values = integers(config, take, rows, cols)
        exact = numbers(tensor)
        errors = sum((value - weight) ** 2 for value, weight in zip(values, exact, strict=True))
        error = math.sqrt(errors / sum(weight**2 for weight in exact))
        print(json.dumps({"tensor": name, "relative_error": error}))
    assert not found, f"unknown tensors: {sorted(found)}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
