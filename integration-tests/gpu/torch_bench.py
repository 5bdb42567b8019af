"""PyTorch's times for the cases of the kernels' benchmark, matched by name.

torch_bench.py BENCH_JSON RESULT_JSON reads the output of `kernels/cuda/benches/cuda` and writes
{name: seconds} for every case that PyTorch has an operation for. The method is the same: one launch
at a time, cold caches, the median.
"""

import json
import re
import statistics
import sys

import torch
from torch.nn import functional as F

REPEATS = 15
BF16 = {"device": "cuda", "dtype": torch.bfloat16}

# Query heads, key/value heads, and features per head, as in the attention benchmarks.
ATTENTION = {
    "llama-8b": (32, 8, 128),
    "llama-70b/tp8": (8, 1, 128),
    "llama-70b/8": (8, 1, 128),
    "qwen3-8b": (32, 8, 128),
    "qwen3-0.6b": (16, 8, 128),
    "chatglm2": (32, 2, 128),
    "chatglm2-6b": (32, 2, 128),
    "head 64": (32, 8, 64),
}

# Inputs and outputs, as in the matrix product benchmarks.
WEIGHTS = {
    "Llama 8B qkv": (4096, 6144),
    "Llama 8B o": (4096, 4096),
    "Llama 8B gate, up": (4096, 28672),
    "Llama 8B down": (14336, 4096),
    "Llama 70B/TP8 qkv": (8192, 1280),
    "Llama 70B/TP8 down": (3584, 8192),
    "Qwen3 8B down": (12288, 4096),
    "Qwen3 0.6B gate, up": (1024, 6144),
    "ChatGLM3 qkv": (4096, 4608),
    "ChatGLM3 gate, up": (4096, 27392),
}


def rows_of(rows, cols, **kind):
    return torch.randn(int(rows), int(cols), **(kind or BF16))


def rms_norm(added, rows, cols):
    x, residual = rows_of(rows, cols), rows_of(rows, cols)
    weight = torch.ones(int(cols), **BF16)
    if added:
        return lambda: F.rms_norm(residual.add_(x), (int(cols),), weight, 1e-5)
    return lambda: F.rms_norm(x, (int(cols),), weight, 1e-5)


def gate(function, rows, cols):
    x = rows_of(rows, 2 * int(cols))
    act = {"silu": F.silu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "gelu": F.gelu}[function]
    return lambda: act(x[:, : int(cols)]) * x[:, int(cols) :]


def addition(rows, cols):
    x, y = rows_of(rows, cols), rows_of(rows, cols)
    return lambda: x.add_(y)


def soft_cap(rows, cols):
    x = rows_of(rows, cols, device="cuda", dtype=torch.float32)
    return lambda: torch.tanh(x / 30.0) * 30.0


def embedding(tokens, cols):
    table = torch.randn(32768, int(cols), **BF16)
    ids = torch.randint(0, 32768, (int(tokens),), device="cuda")
    return lambda: F.embedding(ids, table)


def product(rows, name):
    inputs, outputs = WEIGHTS[name]
    x, weight = rows_of(rows, inputs), rows_of(outputs, inputs)
    return lambda: F.linear(x, weight)


def attention(model, rows, queries, context):
    heads, kv_heads, head_dim = ATTENTION[model]
    rows, queries, context = int(rows), int(queries), int(context)
    q = torch.randn(rows, heads, queries, head_dim, **BF16)
    k, v = (torch.randn(rows, kv_heads, context, head_dim, **BF16) for _ in range(2))
    if queries == 1:
        return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    if queries == context:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    from torch.nn.attention.bias import causal_lower_right

    mask = causal_lower_right(queries, context)
    group = heads // kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sample(rows, vocab):
    logits = rows_of(rows, vocab, device="cuda", dtype=torch.float32)
    return lambda: torch.argmax(logits, -1)


CASES = [
    (r"(add_)?rms_norm (\d+) x (\d+)", rms_norm),
    (r"(silu|gelu|gelu_tanh)_gate .* (\d+) x (\d+)", gate),
    (r"residual addition (\d+) x (\d+)", addition),
    (r"soft cap of logits (\d+) x (\d+)", soft_cap),
    (r"embed (\d+) x (\d+)", embedding),
    (r"gemv bf16 (\d+) x (.+)", product),
    (r"prefill \w+ (.+) (\d+) x (\d+) of (\d+)", attention),
    (r"decode (\S+) bf16 (\d+) x (\d+)", lambda model, rows, context: attention(model, rows, 1, context)),
    (r"sample greedy, (\d+) x (\d+) .*", sample),
]


def work_of(name):
    for pattern, make in CASES:
        if found := re.fullmatch(pattern, name):
            return make(*found.groups())
    return None


def seconds_of(work, flush):
    for _ in range(2):
        work()
    times = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def main():
    source, target = sys.argv[1:]
    with open(source) as file:
        names = [json.loads(line)["kernel"] for line in file]
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, device="cuda", dtype=torch.uint8)
    result = {}
    for name in names:
        try:
            if work := work_of(name):
                with torch.inference_mode():
                    result[name] = seconds_of(work, flush)
                print(f"{name}: {result[name] * 1e6:.2f} us")
            else:
                print(f"{name}: no counterpart")
        except (RuntimeError, KeyError) as error:
            print(f"{name}: {error!r}")
        torch.cuda.empty_cache()
        # The results so far are written even if the time runs out.
        with open(target, "w") as file:
            json.dump(result, file, indent=0)


if __name__ == "__main__":
    main()
