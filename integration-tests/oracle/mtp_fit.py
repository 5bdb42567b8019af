"""Fits a head of multi-token prediction to what its frozen main model generates."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from mtp_head import Head, causal, hidden_of
from seeds import rng_for

RANDOM_PROMPTS = 48  # rollouts besides those of the golden prompts
BATCH = 12  # random rollouts per step
GOLDEN_WEIGHT = 3.0  # weight of the golden rollouts in the loss
LEARNING_RATE = 3e-3
MAX_STEPS = 1200
CHECK_EVERY = 10


@torch.no_grad()
def rollouts(model: PreTrainedModel, prompts: Tensor, length: int, noise: Tensor | None) -> Tensor:
    """Extends `prompts` [batch, tokens] to `length` tokens: greedy, or sampled by Gumbel noise
    [length, batch, vocab]."""
    ids = prompts
    while ids.shape[1] < length:
        row = model(input_ids=ids, use_cache=False).logits[:, -1]
        if noise is not None:
            row = row + noise[ids.shape[1]]
        ids = torch.cat([ids, row.argmax(-1, keepdim=True)], dim=1)
    return ids


def training_ids(model: PreTrainedModel, name: str, golden: list[list[int]]) -> Tensor:
    """Returns the golden rollouts first, then those of random prompts, half of them sampled."""
    length = max(len(ids) for ids in golden)
    vocab, rng = model.config.vocab_size, rng_for(name, "mtp", "rollouts")
    prompts = torch.from_numpy(rng.integers(3, vocab, size=(RANDOM_PROMPTS, 16)))
    noise = torch.from_numpy(rng.gumbel(size=(length, RANDOM_PROMPTS // 2, vocab))).float()
    own = [rollouts(model, torch.tensor([ids]), length, None) for ids in golden]
    half = RANDOM_PROMPTS // 2
    greedy = rollouts(model, prompts[:half], length, None)
    return torch.cat([*own, greedy, rollouts(model, prompts[half:], length, noise)])


def two_guesses(model: PreTrainedModel, head: Head, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logits of the first guess at all positions, and of the second guess after each.

    A second guess reads the first one's output at the position before, and attends to the inputs
    that the main model's hidden states made up to there, and to itself.
    """
    embedded = model.model.embed_tokens(ids[:, 1:])
    x = head.inputs(embedded, hidden[:, :-1])
    m = x.shape[1]
    first = head.norm(head(x, torch.arange(m), causal(m)))
    x = torch.cat([x, head.inputs(embedded[:, 1:], first[:, :-1])], dim=1)
    positions = torch.cat([torch.arange(m), torch.arange(1, m)])
    visible = torch.zeros(2 * m - 1, 2 * m - 1, dtype=torch.bool)
    visible[:m, :m] = causal(m)
    visible[m:, :m] = causal(m)[:-1]
    visible[m:, m:] = torch.eye(m - 1, dtype=torch.bool)
    second = head.norm(head(x, positions, visible)[:, m:])
    return model.lm_head(first), model.lm_head(second)


def fit(
    model: PreTrainedModel, head: Head, name: str, golden: list[list[int]], done: Callable[[], bool]
) -> int:
    """Fits the head with Adam until `done`. Returns the number of steps.

    The targets are the main model's greedy choices at all positions.
    """
    for p in model.parameters():
        p.requires_grad_(False)
    ids, count = training_ids(model, name, golden), len(golden)
    with torch.no_grad():
        hidden = hidden_of(model, ids)
        choices = model.lm_head(hidden).argmax(-1)  # of token i + 1, at position i
    weights = torch.tensor([GOLDEN_WEIGHT] * count + [1.0] * BATCH)
    rng = rng_for(name, "mtp", "batches")
    adam = torch.optim.Adam(head.parameters(), lr=LEARNING_RATE)
    for step in range(1, MAX_STEPS + 1):
        others = count + rng.choice(RANDOM_PROMPTS, size=BATCH, replace=False)
        rows = torch.cat([torch.arange(count), torch.from_numpy(others)])
        first, second = two_guesses(model, head, ids[rows], hidden[rows])
        losses = [
            (cross_entropy(logits.transpose(1, 2), choices[rows][:, skip:], reduction="none").mean(-1) * weights).sum()
            for logits, skip in ((first, 1), (second, 2))
        ]
        adam.zero_grad()
        (losses[0] + 0.5 * losses[1]).backward()
        adam.step()
        if step % CHECK_EVERY == 0 and done():
            return step
    raise SystemExit(f"{name}: the head does not learn enough")
