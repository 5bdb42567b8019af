"""Assertions on every case, after the written files were read back."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedModel

from cases import Spec
from checkpoints import load
from goldens import Golden
from logits import STEPS, forward, greedy_cached, greedy_uncached, is_dynamic, margin, rel

MARGIN_REQUIRED = 1e-3  # what the files promise
NOISE = 1e-5  # largest accepted float32 rounding noise of the stored numbers
SEEN = 1e-3  # a switch counts as seen when ignoring it moves the logits by this
MAX_CASE_BYTES = 150_000


def prompts_of(t: Golden) -> list[tuple[int, list[int]]]:
    n = sum(k.startswith("prompt_ids.") for k in t)
    return [(i, t[f"prompt_ids.{i}"].tolist()) for i in range(n)]


def check_same(model: PreTrainedModel, t: Golden, what: str, tol: float = 1e-6) -> None:
    """Checks that the model reproduces every stored number."""
    for i, prompt in prompts_of(t):
        assert rel(forward(model, prompt), t[f"logits.{i}"]) <= tol, (what, i)
        ids, rows = greedy_uncached(model, prompt)
        assert ids == t[f"continuation_ids.{i}"].tolist(), (what, i)
        assert rel(rows, t[f"continuation_logits.{i}"]) <= tol, (what, i)


def check_numbers(model: PreTrainedModel, t: Golden, what: str) -> float:
    """Checks the margins, the cache, and that float32 rounding does not matter."""
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


# The ends of the names of vectors that must be seen: zeros instead of them change the logits.
BIASES = (".bias", "dt_bias", "A_log", ".D", "alpha_p", "alpha_n")
# The ends of the names of factors that must be seen: ones instead of them change the logits.
SCALES = ("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "router.scale", "per_expert_scale")
# The names of the keys with the epsilon of norms.
EPSILONS = ("norm_eps", "rms_norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon")


def is_of_images(name: str) -> bool:
    """Returns whether a parameter belongs to the parts that read images."""
    return any(part in name for part in ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector.", "mm_projector."))


def is_of_choice(name: str) -> bool:
    """Returns whether a parameter belongs to an indexer, whose choice is that of all keys."""
    return ".indexer." in name


def check_seen(
    model: PreTrainedModel, folder: Path, spec: Spec, t: Golden
) -> tuple[float, str | None]:
    """Checks that ignoring a norm weight, a bias, epsilon or a config switch is visible."""
    base = {i: t[f"logits.{i}"] for i, _ in prompts_of(t)}

    def moved(m: PreTrainedModel) -> float:
        return max(rel(forward(m, p), base[i]) for i, p in prompts_of(t))

    least = (9.0, None)
    for name, p in model.named_parameters():
        if is_of_images(name) or is_of_choice(name):
            continue
        if not (name.endswith(SCALES) or name.endswith(BIASES)):
            continue
        # Without a rotation, the bias of the keys adds the same number to all scores of a query.
        text = model.config.get_text_config()
        if name.endswith("k_proj.bias") and getattr(text, "rope_parameters", None) is None:
            continue
        keep = p.data
        p.data = torch.ones_like(keep) if name.endswith(SCALES) else torch.zeros_like(keep)
        least = min(least, (moved(model), name))
        p.data = keep
    buffers = dict(model.named_buffers())
    # The norm before the head hides the scalar of the last layer.
    scalars = [name for name in buffers if name.endswith("layer_scalar")][:-1]
    for name, b in buffers.items():
        if name.endswith("e_score_correction_bias") or name in scalars:
            keep = b.data
            b.data = torch.ones_like(keep) if name in scalars else torch.zeros_like(keep)
            least = min(least, (moved(model), name))
            b.data = keep
    eps = next((key for key in EPSILONS if key in spec["config"]), None)
    less_exact = [dict([(eps, spec["config"][eps] * 10)])] if eps else []
    for over in [*less_exact, *spec.get("mutants", ())]:
        m = load(folder, **over)
        least = min(least, (moved(m), str(over)))
    assert least[0] > SEEN, (spec["name"], least)
    return least


def size_of(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.iterdir())


def check_size(folder: Path) -> int:
    size = size_of(folder)
    assert size < MAX_CASE_BYTES, (folder.name, size)
    return size
