"""Reading questions: a passage of one fact or a few, and questions that it answers."""

import random

from .units import Unit, a, is_held_out, turn
from .words import ANIMALS, COLOURS, DAYS, FOODS, JOBS, NAMES, PLACES, TOYS


def draw_reading(rng: random.Random, several: bool) -> tuple[str, list[tuple[str, str]], str]:
    """A passage of one fact, or of two or three, all question-answer pairs about it, and its key."""
    count = rng.randint(2, 3) if several else 1
    family = rng.choice(["have", "where", "went", "likes", "job"])
    facts: list[str] = []
    pairs: list[tuple[str, str]] = []
    if family == "have":
        for name, colour, toy in zip(rng.sample(NAMES, count), rng.sample(COLOURS, count), rng.sample(TOYS, count)):
            facts.append(f"{name} has {a(f'{colour} {toy}')}.")
            pairs += [(f"Who has the {colour} {toy}?", f"{name} has the {colour} {toy}."),
                      (f"What does {name} have?", f"{name} has {a(f'{colour} {toy}')}."),
                      (f"What colour is {name}'s {toy}?", f"{name}'s {toy} is {colour}.")]
    elif family == "where":
        for animal, place in zip(rng.sample(ANIMALS, count), rng.sample(PLACES, count)):
            facts.append(f"The {animal} is in the {place}.")
            pairs += [(f"Where is the {animal}?", f"The {animal} is in the {place}."),
                      (f"Who is in the {place}?", f"The {animal} is in the {place}.")]
    elif family == "went":
        name = rng.choice(NAMES)
        for day, place in zip(rng.sample(DAYS, count), rng.sample(PLACES, count)):
            facts.append(f"On {day} {name} went to the {place}.")
            pairs += [(f"When did {name} go to the {place}?", f"{name} went to the {place} on {day}."),
                      (f"Where did {name} go on {day}?", f"{name} went to the {place} on {day}.")]
    elif family == "likes":
        ages = rng.sample(range(3, 60), count)
        for name, age, food in zip(rng.sample(NAMES, count), ages, rng.sample(FOODS, count)):
            facts.append(f"{name} is {age} years old and likes {food}.")
            pairs += [(f"How old is {name}?", f"{name} is {age} years old."),
                      (f"Who likes {food}?", f"{name} likes {food}."),
                      (f"What does {name} like?", f"{name} likes {food}.")]
    else:
        jobs = rng.sample(JOBS, count)
        for name, job, place in zip(rng.sample(NAMES, count), jobs, rng.sample(PLACES, count)):
            facts.append(f"{name} is a {job} and lives near the {place}.")
            pairs += [(f"Who is the {job}?", f"{name} is the {job}."),
                      (f"What does {name} do?", f"{name} is a {job}."),
                      (f"Who lives near the {place}?", f"{name} lives near the {place}."),
                      (f"Where does {name} live?", f"{name} lives near the {place}.")]
    return " ".join(facts), pairs, "read:" + "|".join(sorted(facts))


def reading_unit(rng: random.Random, held_out: bool, several: bool = False, quiz: bool = False) -> Unit:
    """A passage and a few questions about it; in a quiz all that can be asked."""
    while True:
        passage, pairs, key = draw_reading(rng, several)
        if is_held_out(key) == held_out:
            break
    pairs = rng.sample(pairs, len(pairs) if quiz else min(len(pairs), rng.choice([1, 1, 2, 3])))
    form = rng.choice(["{p} {q}", "{p} {q}", "{p}\n{q}", "Read this: {p} {q}", "{p} Question: {q}"])
    messages = turn(form.format(p=passage, q=pairs[0][0]), pairs[0][1])
    for question, answer in pairs[1:]:
        messages += turn(question, answer)
    return Unit("question", messages, key)
