"""A Llama model with random weights, and PyTorch's results for it.

llama.py write FOLDER [SHAPE]     writes a checkpoint: the files of shape.py, and weights
llama.py logits FOLDER ANSWERS    compares the logprobs in ANSWERS (`serve.py logits`) with
                                  PyTorch's in float32
llama.py speed FOLDER RESULT      measures the seconds of a decode step and of a prompt: compiled,
                                  with a static cache and CUDA graphs. Needs no weights

Also works on a CPU for trying it out.
"""

import json
import math
import pathlib
import statistics
import sys
import time

import torch
from torch.nn import functional as F

from shape import shape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# The bound over all compared values: the RMS of the differences relative to the RMS of the logits.
TOLERANCE = 1e-2
DECODES = [1, 8, 32, 128, 256]
CONTEXT, GENERATED = 1024, 128
PREFILLS = [2048, 16384]


def tensors_of(config):
    """Returns the names and shapes of a checkpoint, in the order of the file."""
    h, f, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = h // config["num_attention_heads"] * config["num_key_value_heads"]
    tensors = {"model.embed_tokens.weight": (vocab, h)}
    for layer in range(config["num_hidden_layers"]):
        parts = {"input_layernorm": (h,), "self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
                 "self_attn.o_proj": (h, h), "post_attention_layernorm": (h,), "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h),
                 "mlp.down_proj": (h, f)}
        tensors.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()})
    return {**tensors, "model.norm.weight": (h,), "lm_head.weight": (vocab, h)}


def mapped(path, config, size=None):
    """Maps the tensors of the file. If a size is given, the file is created."""
    file = torch.from_file(str(path), shared=size is not None, size=size or path.stat().st_size, dtype=torch.uint8)
    start = 8 + int.from_bytes(bytes(file[:8].tolist()), "little")
    found = {}
    for name, shape in tensors_of(config).items():
        bytes_ = 2 * math.prod(shape)
        found[name] = file[start : start + bytes_].view(torch.bfloat16).view(shape)
        start += bytes_
    return found


def write(folder, name="8b"):
    config = shape(folder, name)
    header, end = {}, 0
    for name, of in tensors_of(config).items():
        header[name] = {"dtype": "BF16", "shape": of, "data_offsets": [end, end + 2 * math.prod(of)]}
        end = header[name]["data_offsets"][1]
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    path = pathlib.Path(folder) / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    random = torch.Generator(DEVICE).manual_seed(1)
    with open(path, "r+b") as file:
        file.truncate(8 + len(header) + end)
    for tensor in mapped(path, config, 8 + len(header) + end).values():
        tensor.copy_(drawn(tensor.shape, random))
    print(f"{path}: {path.stat().st_size / 1e9:.1f} GB")


def drawn(shape, random):
    values = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(0, 0.02, generator=random)
    return values + 1 if len(shape) == 1 else values


class Llama:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.hidden, self.head_dim = self.config["hidden_size"], self.config["hidden_size"] // self.heads
        if (folder / "model.safetensors").exists():
            stored = mapped(folder / "model.safetensors", self.config)
        else:
            random = torch.Generator(DEVICE).manual_seed(1)
            stored = {name: drawn(of, random) for name, of in tensors_of(self.config).items()}
        take = lambda *names: torch.cat([stored[name] for name in names]).to(DEVICE)
        self.embedding, self.head = take("model.embed_tokens.weight"), take("lm_head.weight")
        self.norm = take("model.norm.weight")
        self.layers = []
        for layer in range(self.config["num_hidden_layers"]):
            of = lambda *names: take(*[f"model.layers.{layer}.{name}.weight" for name in names])
            self.layers.append((of("input_layernorm"), of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), of("self_attn.o_proj"),
                                of("post_attention_layernorm"), of("mlp.gate_proj", "mlp.up_proj"), of("mlp.down_proj")))
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = torch.outer(torch.arange(max(*PREFILLS, CONTEXT + GENERATED), dtype=torch.float64), self.config["rope_theta"] ** -pairs).float()
        self.cos, self.sin = angles.cos().repeat(1, 2).to(DEVICE), angles.sin().repeat(1, 2).to(DEVICE)
        # The bytes of weights that a decode step reads, without the embedding.
        self.bytes = 2 * sum(math.prod(of) for name, of in tensors_of(self.config).items() if "embed" not in name)

    def rms_norm(self, x, weight):
        return F.rms_norm(x, (self.hidden,), weight.to(x.dtype), self.config["rms_norm_eps"])

    def block(self, x, weights, cos, sin, cache, positions, mask):
        """Computes one layer. Keys and values are written to `positions` of the cache, and
        attention covers the whole cache under the mask. Without a cache, a prompt attends to
        itself."""
        norm1, qkv, out, norm2, gate_up, down = [weight.to(x.dtype) for weight in weights]
        rows, tokens, _ = x.shape
        widths = [self.heads, self.kv_heads, self.kv_heads]
        parts = F.linear(self.rms_norm(x, norm1), qkv).view(rows, tokens, -1, self.head_dim).split(widths, 2)
        q, k, v = [part.transpose(1, 2) for part in parts]
        turn = lambda y: y * cos + torch.cat([-y[..., self.head_dim // 2 :], y[..., : self.head_dim // 2]], -1) * sin
        q, k = turn(q).to(x.dtype), turn(k).to(x.dtype)
        if cache is not None:
            k, v = cache[0].index_copy_(2, positions, k), cache[1].index_copy_(2, positions, v)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=cache is None, enable_gqa=True)
        x = x + F.linear(heads.transpose(1, 2).reshape(rows, tokens, -1), out)
        gate, up = F.linear(self.rms_norm(x, norm2), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, down)

    def states(self, ids, dtype, block=None, caches=None, positions=None, mask=None):
        x = F.embedding(ids, self.embedding).to(dtype)
        at = torch.arange(ids.shape[1], device=DEVICE) if positions is None else positions
        cos, sin = self.cos[at], self.sin[at]
        for layer, weights in enumerate(self.layers):
            cache = None if caches is None else caches[layer]
            x = (block or self.block)(x, weights, cos, sin, cache, positions, mask)
        return self.rms_norm(x, self.norm)

    def logits(self, states):
        return F.linear(states, self.head.to(states.dtype)).float()


@torch.inference_mode()
def logits(folder, answers):
    """Yields each answer's token `ids`, and the logprobs by position of ids that may follow."""
    model = Llama(folder)
    differences = {"the server": [], "PyTorch in bfloat16": []}
    sizes = []
    for answer in json.loads(pathlib.Path(answers).read_text()):
        ids = torch.tensor([answer["ids"]], device=DEVICE)
        whole = model.logits(model.states(ids, torch.float32))[0]
        half = model.logits(model.states(ids, torch.bfloat16))[0]
        sizes.append((whole - whole.mean(-1, keepdim=True)).flatten())
        for place, given in answer["logprobs"].items():
            at, ids_there = int(place) - 1, torch.tensor([int(id) for id in given], device=DEVICE)
            want = whole[at].log_softmax(-1)[ids_there]
            differences["the server"].append(torch.tensor(list(given.values()), device=DEVICE) - want)
            differences["PyTorch in bfloat16"].append(half[at].log_softmax(-1)[ids_there] - want)
    size = rms(torch.cat(sizes))
    errors = {who: rms(torch.cat(of)) / size for who, of in differences.items()}
    count = sum(len(of) for of in differences["the server"])
    for who, error in errors.items():
        print(f"{who} differs from PyTorch in float32 by {error:.2e} of the logits ({count} of them)")
    allowed = max(TOLERANCE, 1.2 * errors["PyTorch in bfloat16"])
    assert errors["the server"] <= allowed, f"more than {allowed:.2e}"


def rms(values):
    return values.double().square().mean().sqrt().item()


def clock(work, repeats):
    """Returns the median seconds of `work`."""
    times = []
    for _ in range(repeats):
        wait()
        since = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - since)
    return statistics.median(times)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def decode_step(model, block, sequences):
    """Returns a function that generates the next token of all sequences."""
    length = CONTEXT + GENERATED
    shape = (sequences, model.kv_heads, length, model.head_dim)
    caches = [tuple(torch.randn(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)) for _ in model.layers]
    ids = torch.ones(sequences, 1, dtype=torch.long, device=DEVICE)
    position = torch.tensor([CONTEXT], device=DEVICE)
    places = torch.arange(length, device=DEVICE)

    def step():
        mask = (places <= position)[None, None, None]
        states = model.states(ids, torch.bfloat16, block, caches, position, mask)
        ids.copy_(model.logits(states).argmax(-1))
        position.add_(1)

    for _ in range(3):
        step()
    if DEVICE == "cpu":
        return step
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    position.fill_(CONTEXT)
    return graph.replay


@torch.inference_mode()
def speed(folder, result):
    model = Llama(folder)
    figures = {}
    block = torch.compile(model.block, dynamic=False)
    torch._dynamo.config.cache_size_limit = 64

    def measure(name, work):
        try:
            figures[name] = work()
            print(f"{name}: {figures[name] * 1e3:.3f} ms", flush=True)
        except Exception as error:  # A case that cannot be compiled or does not fit does not discard the others.
            print(f"{name}: {error!r}"[:2000], flush=True)
        # The results so far are written even if the time runs out.
        pathlib.Path(result).write_text(json.dumps(figures, indent=0))

    for sequences in DECODES:
        measure(f"decode {sequences}", lambda: clock(decode_step(model, block, sequences), 60))
    for tokens in PREFILLS:
        ids = torch.ones(1, tokens, dtype=torch.long, device=DEVICE)
        work = lambda: model.logits(model.states(ids, torch.bfloat16, block)[:, -1])
        measure(f"prefill {tokens}", lambda: (work(), clock(work, 3))[1])


if __name__ == "__main__":
    {"write": write, "logits": logits, "speed": speed}[sys.argv[1]](*sys.argv[2:])
