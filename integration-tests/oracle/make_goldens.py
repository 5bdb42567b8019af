#!/usr/bin/env python3
"""Write tiny random checkpoints and the logits transformers computes for them.

    python make_goldens.py [--out ../golden] [case ...]

Without case names every case is written. See README.md next to this file for
the checks made here, and ../golden/README.md for what the written files mean.
"""

import argparse
import copy
import json
import os
import shutil
import sys
import zlib
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEED = 20240607
STEPS = 16  # length of each greedy continuation
MARGIN = 1e-2  # smallest top-1/top-2 logit gap that a prompt is accepted with
MARGIN_REQUIRED = 1e-3  # what the files promise
NOISE = 1e-5  # largest accepted float32 rounding noise of the stored numbers
SEEN = 1e-3  # a switch counts as seen when ignoring it moves the logits by this
MAX_CASE_BYTES = 150_000

# ----------------------------------------------------------------- numbers


def rel(a, b):
    """max|a-b| / max|b| per row, the worst row."""
    a, b = a.double(), b.double()
    return ((a - b).abs().amax(-1) / b.abs().amax(-1)).max().item()


def rng_for(*key):
    return np.random.default_rng([SEED, zlib.crc32("/".join(map(str, key)).encode())])


def fill(model, key):
    """Every parameter random: a norm weight or bias that is left out must show."""
    tied = model.config.tie_word_embeddings
    rng = rng_for(key, "weights")
    for name, p in sorted(model.named_parameters()):
        x = rng.standard_normal(tuple(p.shape))
        if name.endswith("norm.weight"):
            x = 1 + 0.2 * x
        elif name.endswith(".bias"):
            x = 0.2 * x
        elif "embed_tokens" in name:
            # Small, as in trained models, so that the first norm's epsilon is
            # seen; a tied head needs it larger for usable logits.
            x = (0.25 if tied else 0.02) * x
        else:
            x = 0.25 * x
        p.data.copy_(torch.from_numpy(x).to(p.dtype))


def is_dynamic(model):
    return (model.config.rope_parameters or {}).get("rope_type") == "dynamic"


def fresh_rope(model):
    """Forget the frequencies that an earlier, longer forward left behind."""
    if is_dynamic(model):
        r = model.model.rotary_emb
        model.model.rotary_emb = type(r)(config=model.config)


@torch.no_grad()
def forward(model, ids):
    """Logits of one forward over the whole sequence, nothing cached."""
    fresh_rope(model)
    out = model(input_ids=torch.tensor([ids]), use_cache=False)
    return out.logits[0].float()


@torch.no_grad()
def greedy_uncached(model, prompt):
    ids, rows = list(prompt), []
    for _ in range(STEPS):
        row = forward(model, ids)[-1]
        rows.append(row)
        ids.append(int(row.argmax()))
    return ids[len(prompt) :], torch.stack(rows)


@torch.no_grad()
def greedy_cached(model, prompt):
    """As transformers generates: prefill once, then one token at a time."""
    fresh_rope(model)
    cache = transformers.DynamicCache(config=model.config)
    out = model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
    ids, rows = [], []
    for _ in range(STEPS):
        row = out.logits[0, -1].float()
        rows.append(row)
        ids.append(int(row.argmax()))
        out = model(input_ids=torch.tensor([ids[-1:]]), past_key_values=cache, use_cache=True)
    return ids, torch.stack(rows)


def margin(rows):
    top = rows.topk(2, dim=-1).values
    return (top[:, 0] - top[:, 1]).min().item()


# ------------------------------------------------------------------- cases

LLAMA = dict(
    model_type="llama", vocab_size=61, hidden_size=32, intermediate_size=44,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    rms_norm_eps=1e-5, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    tie_word_embeddings=False,
)  # fmt: skip
# One set of weights under several position encodings.
ROPE = dict(LLAMA, head_dim=16, num_key_value_heads=1, intermediate_size=28, vocab_size=53)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=24)
GLM = dict(
    model_type="glm", vocab_size=61, hidden_size=32, intermediate_size=36,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=64, rms_norm_eps=1e-5, attention_bias=True,
    pad_token_id=0, eos_token_id=2, tie_word_embeddings=False,
)  # fmt: skip

CASES = {}


def case(name, config, **kw):
    CASES[name] = dict(name=name, config=config, **kw)


def llama(name, lengths, mutants=(), base=LLAMA, **over):
    kw = {k: over.pop(k) for k in ("dtype", "shards", "weights") if k in over}
    case(name, dict(base, **over), lengths=lengths, mutants=mutants, **kw)


def rope(name, lengths, params, mutants=(), **over):
    llama(name, lengths, mutants, base=ROPE, weights="rope", rope_parameters=params, **over)


# Attention shapes.
llama("llama_gqa", (29, 24), hidden_size=48, num_attention_heads=6, intermediate_size=36)
llama("llama_tied", (33, 25), tie_word_embeddings=True, intermediate_size=80, vocab_size=97)
llama("llama_mha", (24, 38), num_key_value_heads=4, num_hidden_layers=3, intermediate_size=28)
llama("llama_mqa", (32, 27), num_key_value_heads=1, num_attention_heads=8, vocab_size=97)


# ------------------------------------------------------------------ writing


def build(spec):
    config = AutoConfig.for_model(**spec["config"])
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fill(model, spec.get("weights", spec["name"]))
    dtype = spec.get("dtype")
    if dtype is not None:  # the stored weights are the rounded ones
        for p in model.parameters():
            p.data = p.data.to(dtype).float()
    return model


def save(model, spec, folder):
    dtype = spec.get("dtype") or torch.float32
    out = copy.deepcopy(model).to(dtype)
    out.save_pretrained(folder, max_shard_size=spec.get("shards", "10MB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights = sorted(p.name for p in folder.glob("*.safetensors"))
    assert len(weights) == (2 if "shards" in spec else 1), weights


def load(folder, **over):
    config = AutoConfig.from_pretrained(folder)
    if over:
        raw = json.loads((folder / "config.json").read_text())
        raw.update(over)
        config = type(config).from_dict(raw)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def pick_prompt(model, spec, number, length):
    """The first seeded prompt whose greedy path has no near ties."""
    vocab = model.config.vocab_size
    for attempt in range(400):
        rng = rng_for(spec.get("weights", spec["name"]), "prompt", number, length, attempt)
        prompt = rng.integers(3, vocab, size=length).tolist()
        ids, rows = greedy_uncached(model, prompt)
        if margin(rows) < MARGIN or len(set(ids)) < 5 or {0, 1, 2} & set(ids):
            continue
        if is_dynamic(model) and margin(greedy_cached(model, prompt)[1]) < MARGIN:
            continue
        return prompt, ids, rows
    raise SystemExit(f"{spec['name']}: no prompt of length {length} has a clear greedy path")


def golden(model, spec):
    t = {}
    for i, length in enumerate(spec["lengths"]):
        prompt, ids, rows = pick_prompt(model, spec, i, length)
        logits = forward(model, prompt)
        assert torch.equal(logits[-1], rows[0])
        t[f"prompt_ids.{i}"] = torch.tensor(prompt, dtype=torch.int32)
        t[f"logits.{i}"] = logits
        t[f"continuation_ids.{i}"] = torch.tensor(ids, dtype=torch.int32)
        t[f"continuation_logits.{i}"] = rows
        if is_dynamic(model):
            cached_ids, cached_rows = greedy_cached(model, prompt)
            t[f"cached_continuation_ids.{i}"] = torch.tensor(cached_ids, dtype=torch.int32)
            t[f"cached_continuation_logits.{i}"] = cached_rows
            # Row k: the last position when the sequence ends there.
            t[f"last_logits.{i}"] = torch.stack(
                [forward(model, prompt[: k + 1])[-1] for k in range(length)]
            )
    return {k: v.contiguous() for k, v in t.items()}


# ----------------------------------------------------------------- checking


def prompts_of(t):
    n = sum(k.startswith("prompt_ids.") for k in t)
    return [(i, t[f"prompt_ids.{i}"].tolist()) for i in range(n)]


def check_same(model, t, what, tol=1e-6):
    """The model reproduces every stored number."""
    for i, prompt in prompts_of(t):
        assert rel(forward(model, prompt), t[f"logits.{i}"]) <= tol, (what, i)
        ids, rows = greedy_uncached(model, prompt)
        assert ids == t[f"continuation_ids.{i}"].tolist(), (what, i)
        assert rel(rows, t[f"continuation_logits.{i}"]) <= tol, (what, i)


def check_numbers(model, t, what):
    """Margins, the cache, and that float32 rounding does not matter."""
    for i, prompt in prompts_of(t):
        rows, ids = t[f"continuation_logits.{i}"], t[f"continuation_ids.{i}"].tolist()
        assert margin(rows) > MARGIN_REQUIRED, what
        assert all(x.isfinite().all() for x in t.values()), what
        cached_ids, cached_rows = greedy_cached(model, prompt)
        if is_dynamic(model):
            assert cached_ids == t[f"cached_continuation_ids.{i}"].tolist()
            assert margin(cached_rows) > MARGIN_REQUIRED, what
            last = len(prompt) + STEPS - 1
            inside = last <= model.config.max_position_embeddings
            same = rel(cached_rows, rows) < 2e-5
            assert same == inside, (what, i, "cache equals recomputation only below the limit")
        else:
            assert cached_ids == ids, what
            assert rel(cached_rows, rows) < 2e-5, what
    wide = copy.deepcopy(model).double()
    worst = max(rel(forward(wide, p), t[f"logits.{i}"]) for i, p in prompts_of(t))
    assert worst < NOISE, (what, "rounding noise", worst)
    return worst


def check_seen(model, folder, spec, t):
    """Ignoring a norm weight, a bias, epsilon or a config switch must show."""
    base = {i: t[f"logits.{i}"] for i, _ in prompts_of(t)}

    def moved(m):
        return max(rel(forward(m, p), base[i]) for i, p in prompts_of(t))

    least = (9.0, None)
    for name, p in model.named_parameters():
        if not (name.endswith("norm.weight") or name.endswith(".bias")):
            continue
        keep = p.data
        p.data = torch.ones_like(keep) if name.endswith("norm.weight") else torch.zeros_like(keep)
        least = min(least, (moved(model), name))
        p.data = keep
    for over in [dict(rms_norm_eps=spec["config"]["rms_norm_eps"] * 10), *spec.get("mutants", ())]:
        m = load(folder, **over)
        least = min(least, (moved(m), str(over)))
    assert least[0] > SEEN, (spec["name"], least)
    return least


def size_of(folder):
    return sum(p.stat().st_size for p in folder.iterdir())


def check_size(folder):
    size = size_of(folder)
    assert size < MAX_CASE_BYTES, (folder.name, size)
    return size


def write_case(spec, out):
    folder = out / spec["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = build(spec)
    t = golden(model, spec)
    save(model, spec, folder)
    save_file(t, folder / "golden.safetensors")
    again, stored = load(folder), load_file(folder / "golden.safetensors")
    check_same(again, stored, spec["name"])
    noise = check_numbers(again, stored, spec["name"])
    for p in folder.iterdir():
        p.chmod(0o644)
    least, which = check_seen(again, folder, spec, stored)
    gap = min(margin(v) for k, v in stored.items() if "continuation_logits" in k)
    print(
        f"{spec['name']:28} {check_size(folder):7} bytes  margin {gap:.3f}"
        f"  noise {noise:.1e}  least seen {least:.1e} ({which})",
        flush=True,
    )


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def main():
    quiet()
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden")
    ap.add_argument("cases", nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    unknown = set(args.cases) - set(CASES)
    if unknown:
        sys.exit(f"unknown cases: {sorted(unknown)}")
    for name, spec in CASES.items():
        if not args.cases or name in args.cases:
            write_case(spec, args.out)


if __name__ == "__main__":
    main()
