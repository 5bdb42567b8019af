"""Stories to order, and now and then a question about the story."""

import random
from dataclasses import dataclass

from .story_parts import ENDINGS, HOMES, LOOKS, PLAIN_THINGS, SIZES, SPOTS, TIMES, USES
from .units import Unit, a, cap, turn
from .words import ANIMALS, BOYS, GIRLS, PET_NAMES


@dataclass
class Cast:
    """Who and what a story is about; drawn first, so that request, story and follow-up questions agree."""

    hero: str
    name: str
    female: bool
    friend: str
    friend_name: str
    friend_female: bool
    thing: str
    home: str


def draw_cast(rng: random.Random) -> Cast:
    kind = rng.random()
    female = rng.random() < 0.5
    if kind < 0.75:
        hero, name = rng.choice(ANIMALS), rng.choice(PET_NAMES)
        if rng.random() < 0.25:
            name = rng.choice(GIRLS if female else BOYS)
    elif kind < 0.95:
        hero, name = ("girl", rng.choice(GIRLS)) if female else ("boy", rng.choice(BOYS))
    else:
        hero, name = rng.choice(["robot", "snowman", "giant", "king", "wizard", "princess"]), rng.choice(PET_NAMES)
        female = hero == "princess" or (hero in ("robot", "giant") and female)
    friend = rng.choice([x for x in ANIMALS if x != hero])
    friend_name = rng.choice([x for x in PET_NAMES if x != name])
    thing = rng.choice(list(USES)) if rng.random() < 0.75 else rng.choice(PLAIN_THINGS)
    return Cast(hero, name, female, friend, friend_name, rng.random() < 0.5, thing, rng.choice(HOMES))


def tell(rng: random.Random, cast: Cast) -> str:
    """One story of six to eight sentences about the cast."""
    she = ("she", "her", "her") if cast.female else ("he", "him", "his")
    fshe = ("she", "her", "her") if cast.friend_female else ("he", "him", "his")
    fill = {"N": cast.name, "F": cast.friend_name, "hero": cast.hero, "friend": cast.friend, "thing": cast.thing,
            "s": she[0], "o": she[1], "p": she[2], "S": cap(she[0]), "P": cap(she[2]), "fs": fshe[0],
            "fo": fshe[1], "fp": fshe[2], "home": cast.home, "size": rng.choice(SIZES),
            "a_thing": a(rng.choice(LOOKS) + " " + cast.thing), "a_friend": a(cast.friend), "time": rng.choice(TIMES),
            "spot": rng.choice(SPOTS)}
    fill["a_hero"] = a(f"{fill['size']} {cast.hero}")
    story = [rng.choice([
        "Once upon a time, there was {a_hero} named {N} who lived {home}.",
        "Once upon a time, {a_hero} named {N} lived {home}.",
        "There once was {a_hero} called {N}, who lived {home}.",
        "Once upon a time, {home}, there lived {a_hero} named {N}.",
    ])]
    find = rng.choice([
        "{time}, {N} found {a_thing} {spot}.",
        "{time}, {s} came upon {a_thing} {spot}.",
        "{time}, {N}'s grandmother gave {o} {a_thing}.",
        "{time}, {N} got {a_thing} as a present.",
    ])
    meet = rng.choice([
        "{S} ran to show it to {p} friend {F} the {friend}.",
        "{S} took it along to visit {F} the {friend}.",
        "Nearby lived {a_friend} called {F}, and the two did everything together.",
        "On the way {s} met {a_friend} named {F}, and they walked on together.",
    ])
    plot = rng.random()
    if cast.thing in USES and plot < 0.6:
        trouble, help_ = rng.choice(USES[cast.thing])
        story += [find, meet, trouble]
        story += rng.sample(["\"Do not worry,\" said {N}.", "{N} thought hard, and then {s} had an idea.",
                             "\"Wait,\" said {N}, \"I know what to do!\"", "{N} did not wait a moment."], 1)
        story += [help_]
        story += rng.sample(["{F} could hardly believe it.", "\"How clever you are!\" cried {F}.",
                             "{F} clapped for joy.", "\"Thank you,\" whispered {F}."], rng.randrange(2))
    elif plot < 0.75:
        story += [find, meet]
        story += [rng.choice([
            "But {F} wanted the {thing} too, and soon they were quarrelling.",
            "\"I want the {thing}!\" said {F}. \"No, it is mine!\" said {N}.",
        ]), rng.choice([
            "For a whole day they did not speak, and both of them were sad.",
            "{N} went home with the {thing}, but playing alone was no fun at all.",
        ]), rng.choice([
            "Then {N} had an idea: {s} would have the {thing} in the morning, and {F} in the afternoon.",
            "At last {N} knocked on the door and said, \"Let us share the {thing}.\"",
        ]), rng.choice([
            "Sharing made everything twice as nice.",
            "Together they had more fun than ever before.",
        ])]
    elif plot < 0.88:
        places = rng.sample(["under the bed", "behind the stove", "in the garden", "among the potatoes",
                             "up in the attic", "down by the well"], 2)
        story += ["{S} owned {a_thing} and took it everywhere.", "{time}, the {thing} was gone.",
                  f"{{N}} looked {places[0]} and {places[1]}, but it was not there.",
                  "\"I will help you,\" said {p} friend {F} the {friend}.", rng.choice([
                      "They followed a trail of crumbs and found a baby bird asleep on the {thing}.",
                      "At last they looked at each other and laughed: the {thing} had been on {N}'s head all along.",
                      "{F} found the {thing} {spot}, covered in leaves.",
                      "A crow had carried the {thing} to its nest, and it gave it back for a biscuit.",
                  ]), "{N} hugged the {thing} first, and then {F}."]
    else:
        story += ["{S} had {a_thing} that {s} loved more than anything.",
                  "{time}, it was the birthday of {p} friend {F} the {friend}, and {N} had no present.",
                  rng.choice(["{N} thought about it all night long.", "{S} looked at the {thing} and sighed."]),
                  "Then {s} wrapped the {thing} in green leaves and carried it to {F}.", rng.choice([
                      "\"This is the best present of my life,\" said {F}, \"and we shall use it together.\"",
                      "{F} was so happy that {fs} danced around the table.",
                  ]), "{N} noticed that giving felt even better than having."]
    story.append(rng.choice(ENDINGS))
    return " ".join(sentence.format(**fill) for sentence in story)


def story_unit(rng: random.Random) -> Unit:
    """A request, a story that keeps to it, and now and then a question about the story."""
    cast = draw_cast(rng)
    hero, thing = a(cast.hero), a(cast.thing)
    about = rng.choice([
        f"{hero} and {thing}", f"{hero} and {thing}", f"{hero} and {thing}", hero, f"{hero} who finds {thing}",
        f"{hero} named {cast.name}", f"{hero} called {cast.name} and {thing}", f"{hero} and {a(cast.friend)}",
        f"{cast.name} the {cast.hero}", thing, f"{hero}, {a(cast.friend)} and {thing}",
    ])
    request = rng.choice([
        "Tell me a story about {}.", "Tell me a story about {}.", "Tell me a story about {}.",
        "Can you tell me a story about {}?", "Write a short story about {}.", "Please tell me a story about {}.",
        "I would like a story about {}.", "Tell me a bedtime story about {}.", "Write a story about {}.",
        "Make up a story about {}.",
    ]).format(about)
    if rng.random() < 0.08:
        request = rng.choice(["Tell me a story.", "Tell me another story.", "Can you tell me a story?"])
    messages = turn(request, tell(rng, cast))
    if rng.random() < 0.25:
        messages += turn(*rng.choice([
            (f"What was the {cast.hero} called?", f"The {cast.hero} was called {cast.name}."),
            (f"What was the name of the {cast.hero}?", f"The {cast.hero} was called {cast.name}."),
            (f"Who was {cast.name}'s friend?", f"{cast.name}'s friend was {cast.friend_name} the {cast.friend}."),
            (f"Where did {cast.name} live?", f"{cast.name} lived {cast.home}."),
            ("Thank you for the story!", "You are welcome! I am glad that you liked it."),
            ("What a nice story!", "Thank you! Would you like another one?"),
        ]))
    return Unit("story", messages)
