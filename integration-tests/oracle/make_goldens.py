#!/usr/bin/env python3
"""Write tiny random checkpoints and the logits transformers computes for them.

    python make_goldens.py [--out ../golden] [case ...]

Without case names every case is written. See README.md next to this file for
the checks made here, and ../golden/README.md for what the written files mean.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file, save_file

from cases import CASES, VARIANTS, Spec
from checkpoints import build, load, save, share_weights, write_json, write_layout
from checks import check_numbers, check_same, check_seen, check_size
from goldens import Golden, golden
from logits import margin
from old_configs import Config


def report(folder: Path, t: Golden, noise: float, seen: tuple[float, str | None]) -> None:
    gap = min(margin(v) for k, v in t.items() if "continuation_logits" in k)
    line = f"{folder.name:28} {check_size(folder):7} bytes  margin {gap:.3f}  noise {noise:.1e}"
    print(f"{line}  least seen {seen[0]:.1e} ({seen[1]})", flush=True)


def write_case(spec: Spec, out: Path) -> None:
    folder = out / spec["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = build(spec)
    t = golden(model, spec)
    with tempfile.TemporaryDirectory() as tmp:
        native = Path(tmp) if "layout" in spec else folder
        save(model, spec, native)
        save_file(t, folder / "golden.safetensors")
        again, stored = load(native), load_file(folder / "golden.safetensors")
        if "layout" in spec:
            write_layout(native, spec, folder)
        check_same(again, stored, spec["name"], spec.get("noise", 1e-6))
        noise = check_numbers(again, stored, spec["name"])
        seen = check_seen(again, native, spec, stored)
    share_weights(spec, out)
    for p in folder.iterdir():
        p.chmod(0o644)
    report(folder, stored, noise, seen)


def write_variant(name: str, of: str, edit: Callable[[Config], Config], out: Path) -> None:
    """Writes another config.json over the same weights and numbers."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", edit(json.loads((out / of / "config.json").read_text())))
    for p in ("model.safetensors", "golden.safetensors"):
        (folder / p).symlink_to(Path("..") / of / p)
    check_same(load(folder), load_file(folder / "golden.safetensors"), name)
    print(f"{name:28} as {of}", flush=True)


def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def main() -> None:
    quiet()
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden")
    ap.add_argument("cases", nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    unknown = set(args.cases) - set(CASES) - set(VARIANTS)
    if unknown:
        sys.exit(f"unknown cases: {sorted(unknown)}")
    for name, spec in CASES.items():
        if not args.cases or name in args.cases:
            write_case(spec, args.out)
    for name, (of, edit) in VARIANTS.items():
        if not args.cases or name in args.cases:
            write_variant(name, of, edit, args.out)


if __name__ == "__main__":
    main()
