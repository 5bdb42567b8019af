"""What all kinds of task share: the unit, the split by keys, and small pieces of English."""

import hashlib
from dataclasses import dataclass

Message = dict[str, str]


@dataclass
class Unit:
    """One task: its messages in turn (user first), its kind, and the key of its problem where it has one."""

    kind: str
    messages: list[Message]
    key: str | None = None


def is_held_out(key: str) -> bool:
    """The split: one key in twenty is kept from training, by hash, so it holds for every seed.

    Elementary sums are the exception: they are the building blocks of all workings (see `sums.solved`).
    """
    if key.startswith("elementary:"):
        return False
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % 20 == 0


def turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def a(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def cap(text: str) -> str:
    return text[0].upper() + text[1:]


def listing(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
