#!/usr/bin/env python3
"""Write adapters of LoRA with random weights for golden checkpoints, and the logits of PEFT.

    python make_adapters.py [--out ../golden-adapters] [case ...]

See README.md next to this file for the checks made here, and ../golden-adapters/README.md for what
the written files mean.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

from adapter_cases import CASES, Case
from cases import CASES as CHECKPOINTS
from checkpoints import class_of, load, write_json
from goldens import MARGIN, noise_of
from logits import forward, greedy_cached, greedy_uncached, margin, rel
from make_goldens import quiet
from seeds import rng_for

GOLDEN = Path(__file__).parent.parent / "golden"
PROMPTS = 2  # the first ones of the checkpoint
NOISE = 1e-5  # largest share of rounding in the logits, unless the checkpoint allows more
SEEN = 0.05  # smallest relative change of logits by an adapter
PYTORCH = ("gpt2", "plain")  # the adapter that is stored as older versions of PEFT do
BF16 = ("qwen2", "patterns")  # the adapter that is stored in bfloat16


def build(name: str, adapter: str, case: Case, attempt: int) -> PeftModel:
    """Returns the checkpoint with an adapter, whose weights depend on the number of the attempt."""
    model = get_peft_model(load(GOLDEN / name), LoraConfig(**case, task_type="CAUSAL_LM")).eval()
    rng = rng_for(name, adapter, "adapter", attempt)
    for parameter, p in sorted(model.named_parameters()):
        if ".lora_" not in parameter:
            continue
        x = torch.from_numpy(0.3 * rng.standard_normal(tuple(p.shape)))
        p.data.copy_(x.bfloat16() if (name, adapter) == BF16 else x)
    return model


def numbers(model: PeftModel, prompts: list[list[int]], noise: float) -> dict[str, Tensor] | None:
    """Returns the golden numbers, unless rounding could change a continuation."""
    t = {}
    for i, prompt in enumerate(prompts):
        ids, rows = greedy_uncached(model, prompt)
        if margin(rows) < MARGIN or len(set(ids)) < 5 or {0, 1, 2} & set(ids):
            return None
        if noise_of(model, prompt) > noise or rel(greedy_cached(model, prompt)[1], rows) > 10 * noise:
            return None
        t[f"prompt_ids.{i}"] = torch.tensor(prompt, dtype=torch.int32)
        t[f"logits.{i}"] = forward(model, prompt)
        t[f"continuation_ids.{i}"] = torch.tensor(ids, dtype=torch.int32)
        t[f"continuation_logits.{i}"] = rows
    return {k: v.contiguous() for k, v in t.items()}


def save(model: PeftModel, name: str, adapter: str, folder: Path) -> None:
    """Writes the adapter as PEFT does, without what only this machine or a person needs."""
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"../../golden/{name}"
    if isinstance(config["target_modules"], list):  # a set, whose order changes
        config["target_modules"].sort()
    write_json(folder / "adapter_config.json", config)
    file = folder / "adapter_model.safetensors"
    if (name, adapter) == BF16:
        save_file({k: v.bfloat16() for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    if (name, adapter) == PYTORCH:
        torch.save(load_file(file), folder / "adapter_model.bin")
        file.unlink()


def save_merged(model: PeftModel, name: str, folder: Path) -> int:
    """Writes the tensors that the adapter changes as PEFT merges them, in the layout of the
    checkpoint. Returns how many they are."""
    base = load_file(GOLDEN / name / "model.safetensors")
    with tempfile.TemporaryDirectory() as tmp:
        model.merge_and_unload().save_pretrained(tmp)
        merged = load_file(Path(tmp) / "model.safetensors")
    assert merged.keys() == base.keys(), merged.keys() ^ base.keys()
    changed = {k: v for k, v in merged.items() if not torch.equal(v, base[k])}
    save_file(changed, folder / "merged.safetensors")
    return len(changed)


def write_adapter(name: str, adapter: str, case: Case, out: Path) -> None:
    folder = out / name / adapter
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = load_file(GOLDEN / name / "golden.safetensors")
    prompts = [base[f"prompt_ids.{i}"].tolist() for i in range(PROMPTS)]
    noise = CHECKPOINTS[name].get("noise", NOISE)
    for attempt in range(400):
        model = build(name, adapter, case, attempt)
        t = numbers(model, prompts, noise)
        if t is not None:
            break
    else:
        raise SystemExit(f"{name}/{adapter}: no weights have clear greedy paths")
    save(model, name, adapter, folder)
    save_file(t, folder / "golden.safetensors")
    # What was written gives the same numbers, and they are not the checkpoint's.
    again = PeftModel.from_pretrained(load(GOLDEN / name), folder).eval()
    for i, prompt in enumerate(prompts):
        assert rel(forward(again, prompt), t[f"logits.{i}"]) <= 1e-6, name
        seen = (t[f"logits.{i}"] - base[f"logits.{i}"]).abs().amax(-1) / base[f"logits.{i}"].abs().amax(-1)
        assert seen[1:].min() > SEEN, (name, adapter, seen)
    changed = save_merged(again, name, folder)
    for p in folder.iterdir():
        p.chmod(0o644)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}/{adapter:10} {size:7} bytes  {changed} tensors  attempt {attempt}", flush=True)


def modules_of(config: Case) -> list[str]:
    """Returns the names of the modules that adapters can change, with stars for numbers."""
    with torch.device("meta"):
        config = AutoConfig.for_model(**config)
        cls = class_of(config)
        model = (getattr(cls, "_from_config", None) or cls.from_config)(config)
    found = (name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D))
    return sorted({re.sub(r"\b\d+\b", "*", name) for name in found})


def write_modules(out: Path) -> None:
    """Writes the names of modules of the first checkpoint of each kind of model."""
    kinds = {}
    for name, spec in CHECKPOINTS.items():
        kinds.setdefault((spec["config"]["model_type"], spec.get("layout")), name)
    write_json(out / "modules.json", {name: modules_of(CHECKPOINTS[name]["config"]) for name in kinds.values()})


def main() -> None:
    quiet()
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden-adapters")
    ap.add_argument("cases", nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if unknown := set(args.cases) - set(CASES):
        sys.exit(f"unknown cases: {sorted(unknown)}")
    if not args.cases:
        write_modules(args.out)
    for name, of in CASES.items():
        if not args.cases or name in args.cases:
            for adapter, case in of.items():
                write_adapter(name, adapter, case, args.out)


if __name__ == "__main__":
    main()
