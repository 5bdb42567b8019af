"""Writes small quantized checkpoints, each with a dense one of the same weights.

    python3 quantized.py FOLDER

For every case there is FOLDER/CASE/quantized, as the tool of the format writes it, and
FOLDER/CASE/dense, the same model with weights in float32 that are computed here from the numbers
that were stored: both must give the same logits. Codes, scales and zero points are random.

The script needs nothing but Python. It knows the formats from their descriptions only and shares
no code with the reader: codes are put into one long integer for each line of words, by shifting.
"""

import json
import random
import struct
import sys
from pathlib import Path

HIDDEN, WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 128, 4, 2, 16, 64
ATTENTION = [("q_proj", HIDDEN, HIDDEN), ("k_proj", 32, HIDDEN), ("v_proj", 32, HIDDEN)]
MLP = [("gate_proj", WIDTH, HIDDEN), ("up_proj", WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)]
LLAMA = [
    *((f"model.layers.0.self_attn.{name}", rows, cols) for name, rows, cols in ATTENTION),
    ("model.layers.0.self_attn.o_proj", HIDDEN, HIDDEN),
    *((f"model.layers.0.mlp.{name}", rows, cols) for name, rows, cols in MLP),
]
LLAMA_HEAD = ("lm_head", VOCAB, HIDDEN)
LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "torch_dtype": "float32",
}
LLAMA_VECTORS = ["model.norm", "model.layers.0.input_layernorm",
                 "model.layers.0.post_attention_layernorm"]

GLM_LAYER = "transformer.encoder.layers.0."
GLM = [
    (GLM_LAYER + "self_attention.query_key_value", HIDDEN + 64, HIDDEN),
    (GLM_LAYER + "self_attention.dense", HIDDEN, HIDDEN),
    (GLM_LAYER + "mlp.dense_h_to_4h", 2 * WIDTH, HIDDEN),
    (GLM_LAYER + "mlp.dense_4h_to_h", HIDDEN, WIDTH),
]
GLM_CONFIG = {
    "architectures": ["ChatGLMModel"], "model_type": "chatglm", "hidden_size": HIDDEN,
    "ffn_hidden_size": WIDTH, "num_layers": 1, "num_attention_heads": HEADS,
    "multi_query_attention": True, "multi_query_group_num": KV_HEADS, "kv_channels": HEAD_DIM,
    "seq_length": 64, "padded_vocab_size": VOCAB, "layernorm_epsilon": 1e-5,
    "torch_dtype": "float32",
}
GLM_VECTORS = ["transformer.encoder.final_layernorm", GLM_LAYER + "input_layernorm",
               GLM_LAYER + "post_attention_layernorm"]

PACK = {"F32": "<f", "F16": "<e", "I8": "<b", "U8": "<B", "I32": "<i", "I64": "<q"}


def array(dtype, shape, values):
    """A tensor of numbers, as (type, shape, bytes)."""
    count = 1
    for size in shape:
        count *= size
    values = list(values)
    assert len(values) == count, (shape, len(values))
    if dtype == "BF16":
        # The scales are chosen so that nothing is lost here.
        raw = b"".join(struct.pack("<f", value)[2:] for value in values)
        assert all(struct.pack("<f", value)[:2] == b"\0\0" for value in values)
    elif dtype in ("F8_E4M3", "F8_E8M0"):
        raw = bytes(values)
    else:
        raw = struct.pack("<" + str(count) + PACK[dtype][1], *values)
        if dtype == "F16":
            assert struct.unpack("<" + str(count) + "e", raw) == tuple(values)
    return dtype, list(shape), raw


def save(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    raw = b"".join(raw for _, _, raw in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw)


def words(codes, bits, count):
    """One line of codes as `count` words of 32 bits, lowest bits first."""
    line = 0
    for place, code in enumerate(codes):
        line |= code << (place * bits)
    return struct.unpack(f"<{count}i", line.to_bytes(4 * count, "little"))


def lines(rows, bits):
    """Lines of codes as [lines, words]."""
    count = -(-len(rows[0]) * bits // 32)
    return count, [words(row, bits, count) for row in rows]


def transposed(matrix):
    return [list(column) for column in zip(*matrix)]


def flat(matrix):
    return [value for row in matrix for value in row]


def scale(rng, size):
    """A number near `size` that float16 and bfloat16 hold exactly."""
    return rng.randrange(64, 160) * size / 2**7


class Integers:
    """Random codes [rows, cols] with zero points and scales [rows, groups]."""

    def __init__(self, rng, rows, cols, bits, group, symmetric=False, order=None):
        group = cols if group == -1 else group
        self.rows, self.cols, self.bits, self.group = rows, cols, bits, group
        self.groups = -(-cols // group)
        size = 0.5 / 2**bits
        self.codes = [[rng.randrange(2**bits) for _ in range(cols)] for _ in range(rows)]
        middle = 2 ** (bits - 1)
        # Near the middle, so that logits depend little on the rounding of activations.
        zero = lambda: middle if symmetric else rng.randrange(middle // 2, middle * 3 // 2)
        self.zeros = [[zero() for _ in range(self.groups)] for _ in range(rows)]
        self.scales = [[scale(rng, size) for _ in range(self.groups)] for _ in range(rows)]
        self.group_of = [place // group for place in (order or range(cols))]

    def dense(self):
        return [(code - zeros[g]) * scales[g]
                for codes, zeros, scales in zip(self.codes, self.zeros, self.scales)
                for code, g in zip(codes, self.group_of)]


def order_of(key, cols):
    order = list(range(cols))
    random.Random(key).shuffle(order)
    return order


# GPTQ


def gptq(bits, group, sym=False, version=1, desc_act=False, g_idx=False, mixed=False):
    def write(rng, name, rows, cols):
        # Modules with the same inputs have the same order of activations.
        key = f"{name if mixed else cols}-{'down' in name or 'o_proj' in name}"
        m = Integers(rng, rows, cols, bits, group, sym, order_of(key, cols) if desc_act else None)
        count, qweight = lines(m.codes, bits)
        zeros = [[(zero - 1) % 2**bits if version == 1 else zero for zero in row] for row in m.zeros]
        zero_words, qzeros = lines(transposed(zeros), bits)
        tensors = {
            "qweight": array("I32", [count, rows], flat(transposed(qweight))),
            "qzeros": array("I32", [m.groups, zero_words], flat(qzeros)),
            "scales": array("F16", [m.groups, rows], flat(transposed(m.scales))),
        }
        if g_idx or desc_act:
            tensors["g_idx"] = array("I32", [cols], m.group_of)
        return tensors, m.dense()

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": desc_act, "sym": sym}
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    return write, config


# AWQ


def awq(group, gemv=False):
    def write(rng, name, rows, cols):
        m = Integers(rng, rows, cols, 4, group)
        if gemv:
            padded = 8 * -(-m.groups // 8)
            zeros = [row + [0] * (padded - m.groups) for row in m.zeros]
            scales = [row + [0.0] * (padded - m.groups) for row in m.scales]
            count, qweight = lines(m.codes, 4)
            return {
                "qweight": array("I32", [rows, count], flat(qweight)),
                "qzeros": array("I32", [rows, padded // 8], flat(lines(zeros, 4)[1])),
                "scales": array("F16", [rows, padded], flat(scales)),
            }, m.dense()
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def packed(columns):
            return [words([line[8 * (i // 8) + order[i % 8]] for i in range(rows)], 4, rows // 8)
                    for line in columns]

        return {
            "qweight": array("I32", [cols, rows // 8], flat(packed(transposed(m.codes)))),
            "qzeros": array("I32", [m.groups, rows // 8], flat(packed(transposed(m.zeros)))),
            "scales": array("F16", [m.groups, rows], flat(transposed(m.scales))),
        }, m.dense()

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
              "version": "gemv" if gemv else "gemm"}
    return write, config


# compressed-tensors


def compressed(format_, weights, ignore=("lm_head",)):
    return {
        "quant_method": "compressed-tensors", "format": format_, "quantization_status": "compressed",
        "ignore": list(ignore), "kv_cache_scheme": None,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                      "input_activations": None, "output_activations": None}},
    }


def packed(bits, group, symmetric=True, dtype="BF16", actorder=False):
    def write(rng, name, rows, cols):
        key = f"{cols}-{'down' in name or 'o_proj' in name}"
        m = Integers(rng, rows, cols, bits, group, symmetric, order_of(key, cols) if actorder else None)
        count, codes = lines(m.codes, bits)
        tensors = {
            "weight_packed": array("I32", [rows, count], flat(codes)),
            "weight_scale": array(dtype, [rows, m.groups], flat(m.scales)),
            "weight_shape": array("I64", [2], [rows, cols]),
        }
        if not symmetric:
            count, zeros = lines(transposed(m.zeros), bits)
            tensors["weight_zero_point"] = array("I32", [count, m.groups], flat(transposed(zeros)))
        if actorder:
            tensors["weight_g_idx"] = array("I32", [cols], m.group_of)
        return tensors, m.dense()

    strategy = {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}
    return write, compressed("pack-quantized", weights)


def int_quantized(strategy="channel", symmetric=True, skip=()):
    def write(rng, name, rows, cols):
        if any(part in name for part in skip):
            return None
        m = Integers(rng, rows, cols, 8, -1, symmetric)
        if strategy == "tensor":
            m.scales = [m.scales[0]] * rows
        tensors = {
            "weight": array("I8", [rows, cols], (code - 128 for code in flat(m.codes))),
            "weight_scale": array("F32", [1] if strategy == "tensor" else [rows, 1],
                                  m.scales[0] if strategy == "tensor" else flat(m.scales)),
        }
        if not symmetric:
            tensors["weight_zero_point"] = array("I8", [rows, 1], (z - 128 for z in flat(m.zeros)))
        return tensors, m.dense()

    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy}
    return write, compressed("int-quantized", weights, ["lm_head", *(f"re:.*{s}" for s in skip)])


# FP8


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa / 2**9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if byte & 128 else value


def float8_tensors(rng, rows, cols, block, suffix, dtype, shape=None):
    down, across = block
    grid = [-(-rows // down), -(-cols // across)]
    # Numbers of moderate size, of both signs.
    codes = [rng.choice((0, 128)) + rng.randrange(0x18, 0x40) for _ in range(rows * cols)]
    if dtype == "F8_E8M0":
        stored = [rng.randrange(122, 126) for _ in range(grid[0] * grid[1])]
        scales = [2.0 ** (exponent - 127) for exponent in stored]
    else:
        stored = scales = [scale(rng, 0.125) for _ in range(grid[0] * grid[1])]
    dense = [e4m3(code) * scales[i // cols // down * grid[1] + i % cols // across]
             for i, code in enumerate(codes)]
    return {
        "weight": array("F8_E4M3", [rows, cols], codes),
        suffix: array(dtype, grid if shape is None else shape, stored),
    }, dense


def fp8(block, suffix="weight_scale", dtype="F32", method="fp8", input_scale=False):
    """`block` is "tensor", "row", or rows and columns."""

    def write(rng, name, rows, cols):
        sizes = {"tensor": [rows, cols], "row": [1, cols]}.get(str(block), block)
        shape = {"tensor": [], "row": [rows, 1]}.get(str(block))
        tensors, dense = float8_tensors(rng, rows, cols, sizes, suffix, dtype, shape)
        if input_scale:
            tensors["input_scale"] = array("F32", [], [0.5])
        return tensors, dense

    config = {"quant_method": method, "activation_scheme": "static" if input_scale else "dynamic"}
    if not isinstance(block, str):
        config["weight_block_size"] = block
    return write, config


def float_quantized(strategy):
    def write(rng, name, rows, cols):
        block = {"tensor": [rows, cols], "channel": [1, cols], "block": [48, 32]}[strategy]
        shape = {"tensor": [1], "channel": [rows, 1]}.get(strategy)
        return float8_tensors(rng, rows, cols, block, "weight_scale", "BF16", shape)

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    if strategy == "block":
        weights["block_structure"] = [48, 32]
    return write, compressed("float-quantized", weights)


# bitsandbytes

NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]
FP4 = [0.0, 0.00520833, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]


def single(value):
    """The nearest number in single precision."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def four_bits(kind, nested=False):
    table = [single(value) for value in (NF4 if kind == "nf4" else FP4 + [-value for value in FP4])]
    inner = [single((i - 128) / 640) for i in range(256)]

    def write(rng, name, rows, cols):
        codes = [rng.randrange(16) for _ in range(rows * cols)]
        blocks = rows * cols // 64
        state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [rows, cols]}
        if nested:
            absmax = [rng.randrange(256) for _ in range(blocks)]
            outer = [single(rng.uniform(0.3, 0.6)) for _ in range(-(-blocks // 256))]
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
            scales = [inner[code] * outer[i // 256] + 0.25 for i, code in enumerate(absmax)]
            tensors = {"weight.absmax": array("U8", [blocks], absmax),
                       "weight.nested_absmax": array("F32", [len(outer)], outer),
                       "weight.nested_quant_map": array("F32", [256], inner)}
        else:
            scales = [single(rng.uniform(0.1, 0.4)) for _ in range(blocks)]
            tensors = {"weight.absmax": array("F32", [blocks], scales)}
        text = json.dumps(state).encode()
        return tensors | {
            "weight": array("U8", [len(codes) // 2, 1],
                            (16 * a + b for a, b in zip(codes[::2], codes[1::2]))),
            "weight.quant_map": array("F32", [16], table),
            f"weight.quant_state.bitsandbytes__{kind}": array("U8", [len(text)], text),
        }, [table[code] * scales[i // 64] for i, code in enumerate(codes)]

    return write, {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
                   "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}


def int8():
    def write(rng, name, rows, cols):
        codes = [rng.randrange(-127, 128) for _ in range(rows * cols)]
        scb = [single(rng.uniform(0.2, 0.5)) for _ in range(rows)]
        return {
            "weight": array("I8", [rows, cols], codes),
            "SCB": array("F32", [rows], scb),
            "weight_format": array("U8", [], [0]),
        }, [code * scb[i // cols] / 127 for i, code in enumerate(codes)]

    return write, {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}


def chatglm(bits):
    """The scheme of ChatGLM's own code: signed numbers, with a scale for each row."""
    def write(rng, name, rows, cols):
        most = 2 ** (bits - 1) - 1
        codes = [[rng.randint(-most, most) for _ in range(cols)] for _ in range(rows)]
        scales = [scale(rng, 0.3 / most) for _ in range(rows)]
        if bits == 8:
            weight = array("I8", [rows, cols], flat(codes))
        else:
            # Even columns are in the higher bits.
            pairs = [row[i] * 16 | row[i + 1] & 15 for row in codes for i in range(0, cols, 2)]
            weight = array("I8", [rows, cols // 2], [(pair + 128) % 256 - 128 for pair in pairs])
        tensors = {"weight": weight, "weight_scale": array("F16", [rows], half(scales))}
        return tensors, [code * s for row, s in zip(codes, half(scales)) for code in row]
    return write, {"quantization_bit": bits}


def half(values):
    """Numbers rounded to float16."""
    return struct.unpack(f"<{len(values)}e", struct.pack(f"<{len(values)}e", *values))


CASES = {
    "chatglm-8-fused": chatglm(8),
    "chatglm-4-fused": chatglm(4),
    "gptq-4-32-sym": gptq(4, 32, sym=True),
    "gptq-4-64-listed": gptq(4, 64, g_idx=True),
    "gptq-4-row": gptq(4, -1),
    "gptq-8-128-v2": gptq(8, 128, version=2),
    "gptq-3-32": gptq(3, 32),
    "gptq-4-32-desc-act": gptq(4, 32, version=2, desc_act=True),
    "gptq-8-32-desc-act": gptq(8, 32, desc_act=True),
    "gptq-4-32-mixed-orders": gptq(4, 32, desc_act=True, mixed=True),
    "gptq-4-16": gptq(4, 16),
    "gptq-4-32-fused": gptq(4, 32),
    "awq-gemm-32": awq(32),
    "awq-gemm-128": awq(128),
    "awq-gemv-64": awq(64, gemv=True),
    "packed-4-32": packed(4, 32),
    "packed-4-64-zeros": packed(4, 64, symmetric=False, dtype="F16"),
    "packed-8-row": packed(8, -1),
    "packed-4-32-actorder": packed(4, 32, actorder=True),
    "int-row": int_quantized(skip=("down_proj",)),
    "int-row-mixed": int_quantized(skip=("q_proj",)),
    "int-tensor": int_quantized("tensor"),
    "int-row-zeros": int_quantized(symmetric=False),
    "float-tensor": float_quantized("tensor"),
    "float-row": float_quantized("channel"),
    "float-block": float_quantized("block"),
    "bnb-nf4": four_bits("nf4"),
    "bnb-nf4-nested": four_bits("nf4", nested=True),
    "bnb-fp4": four_bits("fp4"),
    "bnb-int8": int8(),
    "fp8-tensor": fp8("tensor", input_scale=True),
    "fp8-row": fp8("row", method="fbgemm_fp8"),
    "fp8-block": fp8([128, 128], suffix="weight_scale_inv"),
    "fp8-small-block": fp8([48, 32], suffix="weight_scale_inv", dtype="F8_E8M0"),
}


def make(folder, case, write, quantization):
    rng = random.Random(case)
    is_fused = case.endswith("fused")
    config, modules = (GLM_CONFIG, list(GLM)) if is_fused else (LLAMA_CONFIG, list(LLAMA))
    head = ("transformer.output_layer", VOCAB, HIDDEN) if is_fused else LLAMA_HEAD
    embedding = "transformer.embedding.word_embeddings" if is_fused else "model.embed_tokens"
    quantized, dense = {}, {}

    def both(name, shape, values):
        quantized[name] = dense[name] = array("F32", shape, values)

    both(embedding + ".weight", [VOCAB, HIDDEN], (rng.gauss(0, 1) for _ in range(VOCAB * HIDDEN)))
    for name in GLM_VECTORS if is_fused else LLAMA_VECTORS:
        both(name + ".weight", [HIDDEN], (1 + rng.gauss(0, 0.2) for _ in range(HIDDEN)))
    # Some checkpoints have a head of few bits too.
    if case == "gptq-4-64-listed":
        modules.append(head)
        quantization = quantization | {"lm_head": True}
    else:
        both(head[0] + ".weight", [VOCAB, HIDDEN], (rng.gauss(0, 0.2) for _ in range(VOCAB * HIDDEN)))
    for name, rows, cols in modules:
        written = write(rng, name, rows, cols)
        if written is None:
            both(name + ".weight", [rows, cols], (rng.gauss(0, 0.2) for _ in range(rows * cols)))
            continue
        tensors, values = written
        quantized.update({f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()})
        dense[name + ".weight"] = array("F32", [rows, cols], values)
        if case == "gptq-4-32-sym":
            # Old versions of AutoGPTQ give every module a bias.
            quantized[name + ".bias"] = array("F16", [rows], [0.0] * rows)
    # Old versions of AutoGPTQ write a file of its own.
    own_file = case == "gptq-4-row"
    for kind, tensors in [("quantized", quantized), ("dense", dense)]:
        path = folder / case / kind
        path.mkdir(parents=True, exist_ok=True)
        save(path / "model.safetensors", tensors)
        # ChatGLM has a key beside the others.
        given = quantization if case.startswith("chatglm") else {"quantization_config": quantization}
        extra = given if kind == "quantized" and not own_file else {}
        (path / "config.json").write_text(json.dumps(config | extra))
    if own_file:
        own = {key: value for key, value in quantization.items() if key != "quant_method"}
        (folder / case / "quantized" / "quantize_config.json").write_text(json.dumps(own))


def main():
    folder = Path(sys.argv[1])
    for case, (write, quantization) in CASES.items():
        make(folder, case, write, quantization)


if __name__ == "__main__":
    main()
