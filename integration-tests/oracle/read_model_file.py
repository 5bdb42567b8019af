"""Reads a file of llama2.c or FastLLM, and compares it with a dense folder in Hugging Face layout.

    python3 read_model_file.py FORMAT FILE FOLDER

FORMAT is `llama2.c-0`, `-1`, `-2`, or `flm-` and f32, f16, int8, int4. The script follows the
descriptions of the formats, needs nothing but Python, and shares no code with the writer. It checks
that the file has nothing else than the tensors of the folder, and prints the largest difference of
a weight, in units of what one rounding to the format may change.
"""

import json
import math
import struct
import sys
from pathlib import Path

from read_quantized import load, numbers

LAYER = "model.layers.{}."
ATTENTION = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
MLP = ["mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"]


def single(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


class Cursor:
    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def take(self, count):
        assert self.at + count <= len(self.raw), f"the file ends at {len(self.raw)}"
        self.at += count
        return self.raw[self.at - count : self.at]

    def unpack(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def word(self):
        return self.unpack("i")[0]

    def text(self):
        return self.take(self.word()).decode()


def halves(rows, head):
    """The rows of query or key with the halves of each head behind each other."""
    order = [h * head + 2 * i + s for h in range(len(rows) // head) for s in range(2) for i in range(head // 2)]
    return [rows[i] for i in order]


def llama2c(file, version, config):
    """All tensors as rows of numbers, each with the step of its roundings."""
    if version == 0:
        words = file.unpack("7i")
        shared, group = words[5] > 0, None
    else:
        assert file.take(4) == struct.pack("<I", 0x616B3432) and file.word() == version
        words = file.unpack("7i")
        shared = file.unpack("B")[0]
        group = file.word() if version == 2 else None
        assert not any(file.take(256 - file.at)), "the header is filled with zeros"
    dim, hidden, layers, heads, kv_heads, vocab, positions = words
    vocab, head = abs(vocab), dim // heads
    assert shared == int(config["tie_word_embeddings"]), words
    assert positions == config["max_position_embeddings"]
    shapes = {
        "self_attn.q_proj": (dim, dim), "self_attn.k_proj": (head * kv_heads, dim),
        "self_attn.v_proj": (head * kv_heads, dim), "self_attn.o_proj": (dim, dim),
        "mlp.gate_proj": (hidden, dim), "mlp.down_proj": (dim, hidden), "mlp.up_proj": (hidden, dim),
    }
    found = {}

    def vector(name):
        found[name + ".weight"] = [[(number, 0.0)] for number in file.unpack(f"{dim}f")]

    def matrix(name, rows, cols):
        if group is None:
            flat = [(number, 0.0) for number in file.unpack(f"{rows * cols}f")]
        else:
            codes = file.unpack(f"{rows * cols}b")
            scales = file.unpack(f"{rows * cols // group}f")
            flat = [(single(code * scales[i // group]), scales[i // group]) for i, code in enumerate(codes)]
        lines = [flat[row * cols : (row + 1) * cols] for row in range(rows)]
        if name.endswith(("q_proj", "k_proj")):
            lines = halves(lines, head)
        found[name + ".weight"] = lines

    def every(module):
        for layer in range(layers):
            name = LAYER.format(layer) + module
            matrix(name, *shapes[module]) if module in shapes else vector(name)

    if version == 0:
        matrix("model.embed_tokens", vocab, dim)
        for module in ["input_layernorm", *ATTENTION, "post_attention_layernorm", *MLP]:
            every(module)
        vector("model.norm")
        table = file.unpack(f"{positions * head}f")
        for place, number in enumerate(table):
            index = place % (positions * head // 2)
            position, pair = divmod(index, head // 2)
            angle = position * 10000.0 ** (-2 * pair / head)
            wanted = math.cos(angle) if place < positions * head // 2 else math.sin(angle)
            assert abs(number - wanted) < 1e-5, (position, pair, number, wanted)
    else:
        for module in ["input_layernorm", "post_attention_layernorm"]:
            every(module)
        vector("model.norm")
        matrix("model.embed_tokens", vocab, dim)
        for module in ATTENTION + MLP:
            every(module)
    if not shared:
        matrix("lm_head", vocab, dim)
    return found


def flm(file, kind, config):
    """All tensors as rows of numbers, each with the step of its roundings."""
    assert file.word() == 2
    pairs = [(file.text(), file.text()) for _ in range(file.word())]
    keys = dict(pairs)
    assert [key for key, _ in pairs] == sorted(keys) and len(keys) == len(pairs)
    for key in ["hidden_size", "model_type", "rms_norm_eps", "tie_word_embeddings"]:
        assert keys[key] == str(config[key]) or float(keys[key]) == config[key], (key, keys[key])
    assert "millrace" not in keys
    has_scores = keys["tokenizer_use_score"] == "1"
    tokens = {}
    for _ in range(file.word()):
        text = bytes(word & 255 for word in file.unpack(f"{file.word()}i")).decode()
        index = file.word()
        assert index not in tokens
        tokens[index] = text
        if has_scores:
            assert math.isfinite(file.unpack("f")[0])
    if keys.get("tokenizer_has_special_tokens") == "1":
        special = [file.text() for _ in range(file.word())]
        assert set(special) <= set(tokens.values())
    found, kinds = {}, set()
    for _ in range(file.word()):
        name = file.text()
        shape = [file.word() for _ in range(file.word())]
        tensor_kind = file.word()
        count, cols = math.prod(shape), shape[-1]
        is_linear = len(shape) == 2 and "embed" not in name
        if is_linear:
            kinds.add(tensor_kind)
        else:
            assert tensor_kind == 0, name
        if tensor_kind in (0, 7):
            form = {0: "f", 7: "e"}[tensor_kind]
            # Halves below the smallest normal number have the same distance from each other.
            step = (lambda number: max(abs(number) * 2**-10, 2**-24)) if tensor_kind else lambda number: 0.0
            flat = [(number, step(number)) for number in file.unpack(f"{count}{form}")]
        else:
            bits = {3: 8, 8: 4}[tensor_kind]
            assert file.word() == 0
            scales = []
            for _ in range(shape[0]):
                low, high = file.unpack("2f")
                low, high = min(low, 0.0), max(high, 0.0)
                scale = single(single(high - low) / (2**bits - 1))
                zero = math.floor(single(-low / scale) + 0.5) if scale else 0
                scales.append((scale, min(max(zero, 0), 2**bits - 1)))
            raw = file.take((count * bits + 7) // 8)
            codes = raw if bits == 8 else [half for byte in raw for half in (byte >> 4, byte & 15)][:count]
            flat = [
                (single((code - scales[i // cols][1]) * scales[i // cols][0]), scales[i // cols][0])
                for i, code in enumerate(codes)
            ]
        found[name] = [flat[i : i + cols] for i in range(0, count, cols)] if len(shape) == 2 else [[x] for x in flat]
    assert kinds == {{"f32": 0, "f16": 7, "int8": 3, "int4": 8}[kind]}, kinds
    return found


def main():
    form, folder = sys.argv[1], Path(sys.argv[3])
    config = json.loads((folder / "config.json").read_text())
    file = Cursor(Path(sys.argv[2]).read_bytes())
    kind = form.split("-")[1]
    found = llama2c(file, int(kind), config) if form.startswith("llama2.c") else flm(file, kind, config)
    assert file.at == len(file.raw), "bytes follow the last tensor"
    dense, worst = load(folder), 0.0
    assert set(found) == set(dense), set(found) ^ set(dense)
    for name, rows in found.items():
        want = numbers(dense[name])
        flat = [pair for row in rows for pair in row]
        assert len(flat) == len(want), name
        for (number, step), wanted in zip(flat, want):
            difference = abs(number - wanted)
            if step == 0.0:
                assert difference == 0.0, (name, number, wanted)
            else:
                worst = max(worst, difference / step)
    print(worst)


main()
