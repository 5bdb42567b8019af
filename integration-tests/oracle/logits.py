"""Computes logits with transformers, in one forward pass or step by step, and compares them."""

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

STEPS = 16  # length of each greedy continuation


def rel(a: Tensor, b: Tensor) -> float:
    """Returns max|a-b| / max|b| of the worst row."""
    a, b = a.double(), b.double()
    return ((a - b).abs().amax(-1) / b.abs().amax(-1)).max().item()


def is_dynamic(model: PreTrainedModel) -> bool:
    return (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") == "dynamic"


def fresh_rope(model: PreTrainedModel) -> None:
    """Resets the frequencies that an earlier, longer forward pass left behind."""
    if is_dynamic(model):
        r = model.model.rotary_emb
        model.model.rotary_emb = type(r)(config=model.config)


@torch.no_grad()
def forward(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Returns the logits of one forward pass over the whole sequence without a cache."""
    fresh_rope(model)
    out = model(input_ids=torch.tensor([ids]), use_cache=False)
    return out.logits[0].float()


@torch.no_grad()
def greedy_uncached(
    model: PreTrainedModel, prompt: list[int], steps: int = STEPS
) -> tuple[list[int], Tensor]:
    ids, rows = list(prompt), []
    for _ in range(steps):
        row = forward(model, ids)[-1]
        rows.append(row)
        ids.append(int(row.argmax()))
    return ids[len(prompt) :], torch.stack(rows)


@torch.no_grad()
def greedy_cached(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], Tensor]:
    """Generates like transformers: prefills once and then decodes one token at a time."""
    fresh_rope(model)
    name = "cache_params" if model.config.model_type == "mamba2" else "past_key_values"
    cache = {name: transformers.DynamicCache(config=model.config)}
    out = model(input_ids=torch.tensor([prompt]), use_cache=True, **cache)
    ids, rows = [], []
    for _ in range(STEPS):
        row = out.logits[0, -1].float()
        rows.append(row)
        ids.append(int(row.argmax()))
        out = model(input_ids=torch.tensor([ids[-1:]]), use_cache=True, **cache)
    return ids, torch.stack(rows)


def margin(rows: Tensor) -> float:
    top = rows.topk(2, dim=-1).values
    return (top[:, 0] - top[:, 1]).min().item()
