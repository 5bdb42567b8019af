"""Chooses a case's prompts and computes the golden numbers."""

import copy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cases import Spec
from logits import forward, greedy_cached, greedy_uncached, is_dynamic, margin, rel
from seeds import rng_for

Golden = dict[str, Tensor]  # golden.safetensors, by tensor name

MARGIN = 1e-2  # smallest top-1/top-2 logit gap that a prompt is accepted with


def pick_prompt(
    model: PreTrainedModel, spec: Spec, number: int, length: int
) -> tuple[list[int], list[int], Tensor]:
    """Returns the first seeded prompt whose greedy path has no near ties."""
    vocab = model.config.get_text_config().vocab_size
    for attempt in range(400):
        rng = rng_for(spec.get("weights", spec["name"]), "prompt", number, length, attempt)
        prompt = rng.integers(3, vocab, size=length).tolist()
        if "noise" in spec and noise_of(model, prompt) > spec["noise"]:
            continue
        ids, rows = greedy_uncached(model, prompt)
        if margin(rows) < MARGIN or len(set(ids)) < 5 or {0, 1, 2} & set(ids):
            continue
        if is_dynamic(model) and margin(greedy_cached(model, prompt)[1]) < MARGIN:
            continue
        if "noise" in spec and rel(greedy_cached(model, prompt)[1], rows) > spec["noise"]:
            continue
        return prompt, ids, rows
    raise SystemExit(f"{spec['name']}: no prompt of length {length} has a clear greedy path")


def noise_of(model: PreTrainedModel, prompt: list[int]) -> float:
    """Returns by how much the logits differ from those of matrix products in float64."""
    return rel(forward(copy.deepcopy(model).double(), prompt), forward(model, prompt))


def golden(model: PreTrainedModel, spec: Spec) -> Golden:
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
            # The last position when the sequence ends there.
            limit = model.config.max_position_embeddings
            at = sorted({1, length // 2, limit - 1, limit, limit + 1, length - 1, length})
            at = [n for n in at if n <= length]
            t[f"last_lengths.{i}"] = torch.tensor(at, dtype=torch.int32)
            t[f"last_logits.{i}"] = torch.stack([forward(model, prompt[:n])[-1] for n in at])
    return {k: v.contiguous() for k, v in t.items()}
