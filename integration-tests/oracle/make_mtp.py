#!/usr/bin/env python3
"""Write tiny checkpoints with heads of multi-token prediction, and the numbers of transformers.

    python make_mtp.py [--out ../golden-mtp] [case ...]

See README.md next to this file for the checks made here, and ../golden-mtp/README.md for what the
written files mean.
"""

import argparse
import copy
import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from cases import CASES as CHECKPOINTS
from cases import Spec
from checkpoints import build, fill, load, save
from checks import size_of
from goldens import MARGIN, Golden
from logits import forward, greedy_uncached, margin, rel
from make_goldens import quiet
from mtp_fit import fit
from mtp_head import Head, chain, logits_of, restored, stored
from seeds import rng_for

LENGTHS = (29, 24)  # of the prompts
STEPS = 48  # length of each greedy continuation
GUESSES = 4  # length of the chain of guesses
DIFFERENT = 12  # fewest different ids in a continuation
MARGIN_REQUIRED = 1e-3  # smallest gap between the two largest logits of any stored choice
NOISE = 2e-5  # largest share of rounding in the logits, also of a long continuation
SEEN = 1e-3  # smallest relative change of logits by a part of the head
SHARES = (0.7, 0.95)  # bounds of the share of right first guesses
MAX_CASE_BYTES = 250_000


def mtp(
    name: str, draw: int = 0, head: str = "head", noise: float = NOISE, **over: object
) -> Spec:
    """Returns the case of that name with a head, a larger vocabulary and a larger context.

    Another `draw` gives other weights, for a case whose continuations have special ids. `noise`
    bounds the rounding noise of the main model, which the head may amplify. Another key `head`
    gives the head other weights to start from, for a case whose head amplifies it too much.
    """
    config = dict(CHECKPOINTS[name]["config"], vocab_size=96, max_position_embeddings=512, **over)
    return dict(name=name, weights=f"mtp/{name}/{draw}", config=config, head=head, noise=noise)


QWEN3_5 = dict(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
CASES = {
    spec["name"]: spec
    for spec in (
        mtp("qwen3_5_text", num_hidden_layers=3, full_attention_interval=3, **QWEN3_5),
        mtp("qwen3_5_moe_text", tie_word_embeddings=True, **QWEN3_5),
        mtp(
            "qwen3_next", draw=1, head="head/1", noise=5e-6, num_hidden_layers=2,
            full_attention_interval=2,
        ),
        mtp("glm4_moe", num_nextn_predict_layers=1),
        mtp("deepseek_v3", num_nextn_predict_layers=1),
    )
}  # fmt: skip


def pick_prompt(model: PreTrainedModel, spec: Spec, number: int) -> tuple[list[int], list[int]]:
    """Returns the first seeded prompt with a varied continuation without near ties, and that
    continuation."""
    for attempt in range(400):
        rng = rng_for(spec["weights"], "prompt", number, attempt)
        prompt = rng.integers(3, model.config.vocab_size, size=LENGTHS[number]).tolist()
        ids, rows = greedy_uncached(model, prompt, STEPS)
        if margin(rows) < MARGIN or len(set(ids)) < DIFFERENT or {0, 1, 2} & set(ids):
            continue
        exact = forward(copy.deepcopy(model).double(), prompt + ids)
        if rel(exact, forward(model, prompt + ids)) < spec["noise"]:
            return prompt, ids
    raise SystemExit(f"{spec['name']}: no prompt has a clear and varied greedy path")


def numbers(model: PreTrainedModel, head: Head, paths: list[tuple[list[int], list[int]]]) -> Golden:
    t = {}
    for i, (prompt, ids) in enumerate(paths):
        n = len(prompt)
        guesses = logits_of(model, head, prompt + ids)[n - 1 :]
        links = chain(model, head, prompt + ids[:1], GUESSES)
        t[f"prompt_ids.{i}"] = torch.tensor(prompt, dtype=torch.int32)
        t[f"logits.{i}"] = forward(model, prompt)
        t[f"continuation_ids.{i}"] = torch.tensor(ids, dtype=torch.int32)
        t[f"mtp_logits.{i}"] = logits_of(model, head, prompt)
        t[f"guess_ids.{i}"] = guesses.argmax(-1).int()
        t[f"chain_ids.{i}"] = links.argmax(-1).int()
        t[f"chain_logits.{i}"] = links
    return {k: v.contiguous() for k, v in t.items()}


def share(t: Golden, number: int) -> float:
    """Returns the share of right first guesses along a continuation."""
    right = t[f"guess_ids.{number}"][:-1] == t[f"continuation_ids.{number}"][1:]
    return right.float().mean().item()


def right_in_chain(t: Golden, number: int) -> int:
    """Returns how many guesses of the chain are right before the first wrong one."""
    right = t[f"chain_ids.{number}"] == t[f"continuation_ids.{number}"][1 : GUESSES + 1]
    return int(right.int().cumprod(0).sum())


def is_clear(model: PreTrainedModel, head: Head, paths: list[tuple[list[int], list[int]]]) -> bool:
    """Returns whether no guess is a near tie and rounding moves no logit of the head by much."""
    wide, wide_head = copy.deepcopy(model).double(), copy.deepcopy(head).double()
    for prompt, ids in paths:
        rows = logits_of(model, head, prompt + ids)[len(prompt) - 1 :]
        links = chain(model, head, prompt + ids[:1], GUESSES)
        if min(margin(rows), margin(links)) < 2 * MARGIN_REQUIRED:
            return False
        exact = [
            logits_of(wide, wide_head, prompt + ids),
            chain(wide, wide_head, prompt + ids[:1], GUESSES),
        ]
        noise = max(rel(exact[0], logits_of(model, head, prompt + ids)), rel(exact[1], links))
        if noise > NOISE:
            return False
    return True


def is_done(model: PreTrainedModel, head: Head, paths: list[tuple[list[int], list[int]]]) -> bool:
    """Returns whether enough guesses are right, some are wrong, and none is a near tie."""
    t = numbers(model, head, paths)
    shares = [share(t, i) for i in range(len(paths))]
    chains = [right_in_chain(t, i) for i in range(len(paths))]
    if not all(SHARES[0] <= s <= SHARES[1] for s in shares):
        return False
    # One chain has several right guesses, and one goes wrong.
    return max(chains) >= 2 and min(chains) < GUESSES and is_clear(model, head, paths)


def check_same(model: PreTrainedModel, head: Head, t: Golden, name: str) -> None:
    """Checks that what was read back gives the stored numbers, and that rounding does not matter."""
    wide, wide_head = copy.deepcopy(model).double(), copy.deepcopy(head).double()
    for i in range(len(LENGTHS)):
        prompt, ids = t[f"prompt_ids.{i}"].tolist(), t[f"continuation_ids.{i}"].tolist()
        assert greedy_uncached(model, prompt, STEPS)[0] == ids, name
        again = numbers(model, head, [(prompt, ids)])
        for key, x in again.items():
            want = t[key.replace(".0", f".{i}")]
            assert torch.equal(x, want) if x.dtype == torch.int32 else rel(x, want) <= 1e-6, (name, key)
        exact = numbers(wide, wide_head, [(prompt, ids)])
        for key in ("logits", "mtp_logits", "chain_logits"):
            noise = rel(exact[f"{key}.0"], t[f"{key}.{i}"])
            assert noise < NOISE, (name, key, "rounding noise", noise)
        assert t[f"chain_ids.{i}"][0] == t[f"guess_ids.{i}"][0], name


def check_seen(model: PreTrainedModel, head: Head, t: Golden, name: str) -> tuple[float, str]:
    """Checks that leaving out a part of the head moves the logits. Returns the weakest change."""
    least = (9.0, "")
    prompts = [t[f"prompt_ids.{i}"].tolist() for i in range(len(LENGTHS))]

    def moved(h: Head) -> float:
        return max(rel(logits_of(model, h, p), t[f"mtp_logits.{i}"]) for i, p in enumerate(prompts))

    for key, x in head.state_dict().items():
        if key.endswith(("norm.weight", "e_score_correction_bias")):
            other = copy.deepcopy(head)
            other.state_dict()[key].fill_(0.0 if key.endswith("bias") else 1.0)
            least = min(least, (moved(other), key))
    swapped = copy.deepcopy(head)
    embedding_half, hidden_half = head.fc.weight.data.chunk(2, dim=1)
    swapped.fc.weight.data = torch.cat([hidden_half, embedding_half], dim=1)
    least = min(least, (moved(swapped), "order of the halves"))
    for i, prompt in enumerate(prompts):
        ids = prompt + t[f"continuation_ids.{i}"].tolist()[:1]
        raw = chain(model, head, ids, 2, normed=False)
        least = min(least, (rel(raw[1:], t[f"chain_logits.{i}"][1:2]), "norm within the chain"))
    assert least[0] > SEEN, (name, least)
    return least


def save_with_head(model: PreTrainedModel, head: Head, spec: Spec, folder: Path) -> None:
    save(model, spec, folder)
    file = folder / "model.safetensors"
    state, own = load_file(file), stored(model, head)
    assert not state.keys() & own.keys(), state.keys() & own.keys()
    save_file({**state, **own}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key in ("mtp_num_hidden_layers", "num_nextn_predict_layers"):
        assert config.get(key) == spec["config"].get(key, config.get(key)), key


def write_case(spec: Spec, out: Path) -> None:
    name, folder = spec["name"], out / spec["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = build(spec)
    paths = [pick_prompt(model, spec, i) for i in range(len(LENGTHS))]
    head = Head(model)
    head.config = model.config  # read by `fill`
    fill(head, f"{spec['weights']}/{spec['head']}")
    golden = [prompt + ids for prompt, ids in paths]
    steps = fit(model, head, spec["weights"], golden, lambda: is_done(model, head, paths))
    save_with_head(model, head, spec, folder)
    save_file(numbers(model, head, paths), folder / "golden.safetensors")
    again, t = load(folder), load_file(folder / "golden.safetensors")
    head_again = restored(again, load_file(folder / "model.safetensors"))
    check_same(again, head_again, t, name)
    seen = check_seen(again, head_again, t, name)
    for p in folder.iterdir():
        p.chmod(0o644)
    assert size_of(folder) < MAX_CASE_BYTES, (name, size_of(folder))
    report(name, t, size_of(folder), steps, seen)


def report(name: str, t: dict[str, Tensor], size: int, steps: int, seen: tuple[float, str]) -> None:
    prompts = range(len(LENGTHS))
    shares = ", ".join(f"{share(t, i):.0%}" for i in prompts)
    chains = ", ".join(str(right_in_chain(t, i)) for i in prompts)
    different = ", ".join(str(len(set(t[f"continuation_ids.{i}"].tolist()))) for i in prompts)
    print(
        f"{name:18} {size:7} bytes  {steps:4} steps  right first guesses {shares}  right in chain {chains}"
        f"  different ids {different}  least seen {seen[0]:.1e} ({seen[1]})",
        flush=True,
    )


def main() -> None:
    quiet()
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden-mtp")
    ap.add_argument("cases", nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if unknown := set(args.cases) - set(CASES):
        sys.exit(f"unknown cases: {sorted(unknown)}")
    for name, spec in CASES.items():
        if not args.cases or name in args.cases:
            write_case(spec, args.out)


if __name__ == "__main__":
    main()
