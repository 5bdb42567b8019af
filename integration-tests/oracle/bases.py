"""What the test cases are made of: configurations that several change, and the list of cases."""

from collections.abc import Sequence
from typing import Any

from old_configs import Config

Spec = dict[str, Any]  # one case: the arguments of `case`
Lengths = tuple[int, ...]

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

CASES: dict[str, Spec] = {}


def case(name: str, config: Config, **kw: Any) -> None:
    CASES[name] = dict(name=name, config=config, **kw)


def llama(
    name: str, lengths: Lengths, mutants: Sequence[Config] = (), base: Config = LLAMA, **over: Any
) -> None:
    kw = {k: over.pop(k) for k in ("dtype", "shards", "weights") if k in over}
    case(name, dict(base, **over), lengths=lengths, mutants=mutants, **kw)


def rope(
    name: str, lengths: Lengths, params: Config, mutants: Sequence[Config] = (), **over: Any
) -> None:
    llama(name, lengths, mutants, base=ROPE, weights="rope", rope_parameters=params, **over)


def ropes(params: Config, **over: Any) -> Config:
    """Returns a change of config.json's rope_parameters. Fields that are not given keep the value
    of the case."""
    return dict(rope_parameters={**params, **over})


PLAIN = dict(rope_parameters=dict(rope_type="default"))
