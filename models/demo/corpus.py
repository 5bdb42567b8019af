"""The corpus of Millrace's demo model: an endless, seeded stream of small conversations.

Everything here is made by the grammar in `grammar/`; no outside text is used. A *unit* is one task with its
answer (a story, a question, a sum, a piece of JSON); a *document* is one or more units in a row, or plain text.

Sums, reading questions and JSON tasks carry a *key*, the exact problem instance. `is_held_out` divides the keys
once and for all by a hash, so training and held-out problems cannot meet, whatever the seed.

`python corpus.py` prints a few documents; `python corpus.py --heldout` rewrites heldout.jsonl.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grammar.facts import fact_unit
from grammar.json_tasks import json_unit
from grammar.questions import reading_unit
from grammar.stories import draw_cast, story_unit, tell
from grammar.sums import sum_unit
from grammar.units import Message, Unit

HERE = Path(__file__).resolve().parent
SYSTEMS = ["You are a helpful assistant.", "You are a friendly assistant.", "You are Millrace's little demo model.",
           "Answer briefly.", "You are kind and helpful.", "You help people."]


@dataclass
class Document:
    """One training text: messages, or plain text when there are none, with the kind of each answer."""

    messages: list[Message]
    kinds: list[str]
    keys: list[str]
    text: str = ""


def draw_unit(rng: random.Random, several: bool) -> Unit:
    draw = rng.random()
    if draw < 0.15:
        return story_unit(rng)
    if draw < 0.39:
        return reading_unit(rng, held_out=False, several=several)
    if draw < 0.50:
        return fact_unit(rng)
    if draw < 0.76:
        return sum_unit(rng, held_out=False)
    return json_unit(rng, held_out=False)


def careless(rng: random.Random, text: str) -> str:
    """Some users do not bother with capitals or full stops."""
    if rng.random() < 0.5:
        text = text[0].lower() + text[1:]
    return text.rstrip(".?!") if rng.random() < 0.5 else text


def documents(seed: int, several: bool = False, quizzes: float = 0.0) -> Iterator[Document]:
    """The endless training stream, with several facts in a passage or one; this share of it are quizzes."""
    rng = random.Random(seed)
    while True:
        if quizzes and rng.random() < quizzes:
            unit = reading_unit(rng, held_out=False, several=several, quiz=True)
            yield Document(unit.messages, [unit.kind] * (len(unit.messages) // 2), [unit.key])
            continue
        if rng.random() < 0.04:
            yield Document([], ["story"], [], tell(rng, draw_cast(rng)))
            continue
        units = [draw_unit(rng, several)]
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 3)):
                follow = units[-1].kind == "sum" and rng.random() < 0.3
                units.append(sum_unit(rng, False, follow_up=True) if follow else draw_unit(rng, several))
        messages: list[Message] = []
        kinds: list[str] = []
        if rng.random() < 0.12:
            messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
        for unit in units:
            if rng.random() < 0.08:
                unit.messages[0]["content"] = careless(rng, unit.messages[0]["content"])
            messages += unit.messages
            kinds += [unit.kind] * (len(unit.messages) // 2)
        yield Document(messages, kinds, [unit.key for unit in units if unit.key])


def heldout(count: int = 400, seed: int = 20) -> tuple[list[dict[str, object]], set[str]]:
    """The held-out tasks, a third of each kind and a quarter of them in two turns, and the keys they use."""
    rng = random.Random(seed)
    makers = {"sum": sum_unit, "question": reading_unit, "json": json_unit}
    tasks: list[dict[str, object]] = []
    keys: set[str] = set()
    seen: set[str] = set()
    while len(tasks) < count:
        kind = list(makers)[len(tasks) % 3]
        unit = makers[kind](rng, True)
        before: list[Message] = []
        if rng.random() < 0.25 and len(unit.messages) == 2:
            other = list(makers.values())[rng.randrange(3)](rng, True)
            before = other.messages
            keys.add(str(other.key))
        messages = before + unit.messages
        if (text := json.dumps(messages)) in seen:
            continue
        seen.add(text)
        keys.add(str(unit.key))
        tasks.append({"kind": kind, "messages": messages[:-1], "answer": messages[-1]["content"]})
    return tasks, keys


def write_heldout(path: Path = HERE / "heldout.jsonl") -> None:
    path.write_text("".join(json.dumps(task) + "\n" for task in heldout()[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heldout", action="store_true", help="rewrite heldout.jsonl instead of printing samples")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.heldout:
        write_heldout()
    else:
        stream = documents(arguments.seed)
        for _ in range(arguments.count):
            document = next(stream)
            for message in document.messages:
                print(f"{message['role']}: {message['content']}")
            print(document.text + "\n---" if document.text else "---")


if __name__ == "__main__":
    main()
