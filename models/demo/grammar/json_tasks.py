"""JSON tasks: a sentence, and an object with the fields that are asked of it."""

import json
import random

from .units import Unit, a, is_held_out, listing, turn
from .words import ANIMALS, COLOURS, DAYS, FOODS, NAMES, PLACES, TOYS


def draw_json(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    """A sentence and all the fields that it tells."""
    family = rng.randrange(5)
    name, colour = rng.choice(NAMES), rng.choice(COLOURS)
    if family == 0:
        age = rng.randint(3, 60)
        form = rng.choice(["{n} is {g} years old and likes the colour {c}.", "{n} likes {c} and is {g} years old.",
                           "My friend {n} is {g} and loves the colour {c}."])
        return form.format(n=name, g=age, c=colour), {"name": name, "age": age, "colour": colour}
    if family == 1:
        animal, place = rng.choice(ANIMALS), rng.choice(PLACES)
        form = rng.choice(["{n} the {a} lives in the {p}.", "In the {p} lives {a_a} named {n}."])
        return form.format(n=name, a=animal, a_a=a(animal), p=place), {"name": name, "animal": animal, "home": place}
    if family == 2:
        count, food, day = rng.randint(2, 30), rng.choice(FOODS), rng.choice(DAYS)
        form = rng.choice(["{n} bought {k} {f} on {d}.", "On {d} {n} bought {k} {f}."])
        fields = {"name": name, "count": count, "food": food, "day": day}
        return form.format(n=name, k=count, f=food, d=day), fields
    if family == 3:
        toy, place = rng.choice(TOYS), rng.choice(PLACES)
        form = rng.choice(["{n} left {a} in the {p}.", "{n} found {a} in the {p}."])
        fields = {"name": name, "colour": colour, "thing": toy, "place": place}
        return form.format(n=name, a=a(f"{colour} {toy}"), p=place), fields
    age, animal = rng.randint(2, 15), rng.choice(ANIMALS)
    form = rng.choice(["The {c} {a} {n} is {g} years old.", "{n} is {a_c} {a} and {g} years old."])
    fields = {"name": name, "animal": animal, "colour": colour, "age": age}
    return form.format(c=colour, a_c=a(colour), a=animal, n=name, g=age), fields


def json_unit(rng: random.Random, held_out: bool) -> Unit:
    while True:
        sentence, fields = draw_json(rng)
        key = "json:" + "|".join(str(value) for value in fields.values())
        if is_held_out(key) == held_out:
            break
    asked = list(fields)
    if rng.random() < 0.5:
        asked = rng.sample(asked, rng.randint(2, len(asked)))
    form = rng.choice(["{s} Answer in JSON with {k}.", "{s} Answer in JSON with {k}.", "{s} Give me JSON with {k}.",
                       "{s} Write this as JSON with {k}.", "Answer in JSON with {k}: {s}",
                       "{s} Reply in JSON with the keys {k}."])
    answer = json.dumps({field: fields[field] for field in asked})
    return Unit("json", turn(form.format(s=sentence, k=listing(asked)), answer), key)
