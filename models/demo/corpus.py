"""The corpus of Millrace's demo model: an endless, seeded stream of small conversations.

Everything here is made by the grammar in this file; no outside text is used. A *unit* is one task with its
answer (a story, a question, a sum, a piece of JSON); a *document* is one or more units in a row, or plain text.

Sums, reading questions and JSON tasks carry a *key*, the exact problem instance. `is_held_out` divides the keys
once and for all by a hash, so training and held-out problems cannot meet, whatever the seed.

`python corpus.py` prints a few documents; `python corpus.py --heldout` rewrites heldout.jsonl.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Message = dict[str, str]
HERE = Path(__file__).resolve().parent

# The words that answers copy. The lists are short, and the tokenizer knows each word whole (see train.py), so that
# even a very small model copies them faithfully.
GIRLS = "Mia Ada Lily Nora Rosa Ivy Clara Emma Zoe Anna Maya Ruby".split()
BOYS = "Tom Ben Max Leo Sam Finn Noah Oscar Paul Hugo Jack Theo".split()
PET_NAMES = "Pip Juno Bramble Hazel Moss Pepper Clover Biscuit Nutmeg Willow Poppy Fern Toffee Maple Pebble".split()
NAMES = GIRLS + BOYS + PET_NAMES
COLOURS = "red blue green yellow orange purple pink brown black white".split()
ANIMALS = """fox owl bear rabbit mouse hedgehog badger squirrel frog duck otter cat dog goat sheep horse deer wolf
penguin lion turtle dragon""".split()
PLACES = "barn garden kitchen forest tower cellar library market harbour school meadow castle".split()
FOODS = "plums pears apples cherries carrots beans nuts lemons muffins pancakes".split()
TOYS = "kite ball drum hat scarf boat book lamp bell cup bag box train basket".split()
JOBS = "baker pilot painter farmer doctor sailor teacher gardener".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
VALUES = NAMES + COLOURS + ANIMALS + PLACES + FOODS + TOYS + JOBS + DAYS
MONTHS = """January February March April May June July August September October November December""".split()
NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()

# What each thing is good for in a story: (trouble, how the thing helps). N is the hero, F the friend; s/o/p are
# "she/her/her" for the hero, fs/fo/fp for the friend; a capital first letter starts a sentence.
USES: dict[str, list[tuple[str, str]]] = {
    "lantern": [
        ("On the way home the path grew so dark that {F} could not see {fp} own feet.",
         "{N} lit the lantern, and a warm golden light showed them every stone."),
        ("That night {F} got lost among the tall trees.",
         "{N} hung the lantern on a high branch, and {F} followed the light all the way back."),
    ],
    "kite": [
        ("{F} had never seen the sea and was too small to climb the hill.",
         "{N} tied a drawing pencil to the kite, and together they drew a big blue sea in the sky."),
        ("{F} was stuck on the far side of the valley and nobody could hear {fo}.",
         "{N} let the kite fly as high as the clouds, and {F} saw it and knew which way to walk."),
    ],
    "drum": [
        ("At the summer dance nobody knew when to step, and {F} kept bumping into people.",
         "{N} played the drum, boom, boom, boom, and soon every foot found the beat."),
        ("A thick fog came down, and {F} could not find the way home.",
         "{N} beat the drum slowly, and {F} walked towards the sound until they met."),
    ],
    "rope": [
        ("Suddenly {F} slipped into a deep hole and could not climb out.",
         "{N} tied the rope to a tree and pulled with all {p} might until {F} was free."),
        ("The little bridge was broken, and {F} was afraid of the cold water.",
         "{N} stretched the rope from bank to bank, and {F} held on tightly and crossed."),
    ],
    "umbrella": [
        ("Then the rain began to pour, and {F} had no coat.",
         "{N} opened the umbrella, and there was just enough room for two."),
        ("A stream ran across the path, too wide for {F} to jump.",
         "{N} turned the umbrella upside down, and it floated like a little boat."),
    ],
    "map": [
        ("They wanted to visit the old lighthouse, but {F} did not know the way.",
         "{N} spread out the map, found the lighthouse with one finger and led them there before tea."),
        ("At the crossroads {F} wanted to go left, and {N} wanted to go right.",
         "They looked at the map together and laughed, because both roads led home."),
    ],
    "bell": [
        ("Every morning {F} slept too long and missed breakfast.",
         "So {N} rang the bell outside the window, and {F} was the first one at the table."),
        ("While they were picking berries, {F} wandered off into the mist.",
         "{N} rang the bell three times, and {F} came running back to the sound."),
    ],
    "blanket": [
        ("When the snow came, {F} could not stop shivering.",
         "{N} wrapped the blanket around both of them, and soon they were warm as toast."),
        ("{F} was afraid of the thunder that night.",
         "{N} made a cosy tent out of the blanket, and the storm seemed very far away."),
    ],
    "basket": [
        ("{F} had found a hundred apples and could carry only two.",
         "{N} filled the basket to the top, and they carried it home between them."),
        ("A tiny bird had fallen from its nest, and {F} did not know what to do.",
         "{N} laid soft moss in the basket, and the bird slept there until its mother came."),
    ],
    "boat": [
        ("{F} longed to see the little island in the middle of the lake.",
         "They climbed into the boat, and {N} rowed until the sand crunched beneath them."),
        ("The river had flooded, and {F} was sitting alone on a rock.",
         "{N} paddled the boat through the brown water and brought {F} safely to the shore."),
    ],
    "key": [
        ("Behind the ivy {F} discovered a tiny locked door.",
         "{N} turned the key, the door opened, and behind it lay a garden full of roses."),
        ("{F} had locked {fp} supper in a chest and forgotten how to open it.",
         "{N} tried the key, and with a friendly click the lid sprang open."),
    ],
    "book": [
        ("{F} was ill in bed and terribly bored.",
         "{N} sat down beside {fo} and read from the book until the sun went down."),
        ("{F} wanted to bake a cake but did not know how.",
         "{N} looked it up in the book, and they baked the finest cake in the valley."),
    ],
    "scarf": [
        ("An icy wind blew, and {F} had a sore throat.",
         "{N} wound the scarf around {F} three times, and the cough was soon gone."),
        ("{F} had hurt {fp} foot and could not walk.",
         "{N} tied the scarf around the foot, and they limped home together, singing."),
    ],
    "whistle": [
        ("In the evening the sheep would not come home, and {F} was close to tears.",
         "{N} blew the whistle, and one by one the sheep trotted through the gate."),
        ("{F} climbed too high in the old oak and did not dare to come down.",
         "{N} blew the whistle for help, and the neighbours came with a long ladder."),
    ],
    "ladder": [
        ("{F} had thrown {fp} ball onto the roof.",
         "{N} leaned the ladder against the wall, climbed up and threw the ball back down."),
        ("The sweetest cherries hung high at the top of the tree, and {F} was hungry.",
         "{N} climbed the ladder, and soon they both had red lips and full bellies."),
    ],
    "teapot": [
        ("{F} came in from the cold with a red nose and a sad face.",
         "{N} filled the teapot with mint tea, and after one cup {F} was smiling again."),
        ("The little tree in the yard was thirsty, and {F} had no watering can.",
         "{N} carried water in the teapot, and the next morning the tree was in bloom."),
    ],
    "mirror": [
        ("Deep in the cave lived a monster, and {F} was much too scared to go in.",
         "{N} held up the mirror, and the monster saw how funny it looked and began to giggle."),
        ("No sunlight ever reached the bottom of the valley where {F} had a garden.",
         "{N} set the mirror on the hill, and it sent the sun straight down to the flowers."),
    ],
    "seed": [
        ("It was a hungry year, and {F} had nothing left to eat.",
         "{N} planted the seed, and it grew into a pumpkin so big that everyone had soup."),
        ("The yard behind the house was bare, and {F} found it ugly.",
         "They planted the seed and watered it, and by summer a tall sunflower looked over the wall."),
    ],
    "spoon": [
        ("{F} wanted to dig a pond but had no spade.",
         "{N} dug with the spoon day after day, and in spring the first frogs moved in."),
        ("The soup for the feast tasted of nothing, and {F} was ashamed.",
         "{N} stirred in some honey with the spoon, and everybody asked for more."),
    ],
    "ball": [
        ("At first {F} was too shy to play and stood alone by the fence.",
         "{N} rolled the ball over, {F} rolled it back, and they did not stop until dark."),
        ("{F} said that there was nothing to do on such a grey day.",
         "{N} bounced the ball against the wall, and they invented a game with very silly rules."),
    ],
    "hat": [
        ("The sun burned down, and {F} felt quite dizzy.",
         "{N} put the hat on {F} and led {fo} to a cool place under the trees."),
        ("{F} found three eggs and had nothing to carry them in.",
         "{N} took off the hat, laid the eggs inside and carried it home without breaking one."),
    ],
    "shell": [
        ("{F} missed the sea so much that {fs} could not sleep.",
         "{N} held the shell to {fp} ear, and the soft sound of the waves sang {fo} to sleep."),
        ("{F} did not believe in wonders any more.",
         "{N} blew into the shell, and far out on the water a whale sang back."),
    ],
    "violin": [
        ("The town was quiet and sad that winter, and even {F} had stopped laughing.",
         "{N} played the violin on the square, and one window after another opened to listen."),
        ("{F} could not fall asleep.",
         "{N} played a very slow song on the violin, and {F} was snoring before it ended."),
    ],
    "cake": [
        ("{F} thought that everyone had forgotten {fp} birthday.",
         "{N} carried in the cake with seven candles, and {F} blew them all out at once."),
        ("A grumpy giant blocked the road and would not let {F} pass.",
         "{N} offered the giant a slice of cake, and he was so pleased that he carried them home."),
    ],
    "letter": [
        ("The letter was for {F}'s old uncle on the far side of the mountain.",
         "{N} and {F} walked for two days to bring the letter, and the uncle danced for joy."),
        ("After a silly quarrel {F} would not speak to {N}.",
         "So {N} wrote \"I am sorry\" on the back of the letter, and {F} came to the door with a hug."),
    ],
    "star": [
        ("It was the longest night of the year, and {F} was afraid of the dark.",
         "{N} set the star on the window sill, and it glowed softly until morning."),
        ("The star was cold and homesick, and {F} did not know how to help it.",
         "{N} climbed the highest hill and threw the star back into the sky, where it winked at them."),
    ],
    "broom": [
        ("{F} could not find the door of {fp} house under all the autumn leaves.",
         "{N} swept with the broom until the door shone and the leaves lay in a heap to jump in."),
        ("Dust lay thick in the old mill, and {F} could not stop sneezing.",
         "{N} took the broom and swept the mill so clean that {F} moved right in."),
    ],
    "pencil": [
        ("{F} could not remember the face of {fp} faraway grandmother.",
         "{N} took the pencil and drew her just as {F} described her, smile and all."),
        ("The walls of the tiny room made {F} feel lonely.",
         "{N} drew a whole forest on the walls with the pencil, and the room felt full of friends."),
    ],
}
# Things that have no use of their own; they appear in the other plots.
PLAIN_THINGS = """cup bag box coat train flute puppet stone flower coin ring marble cookie pillow clock candle
wagon balloon button feather spade bucket crown puzzle shoe acorn""".split()

HOMES = ["by the river", "at the edge of the forest", "in a quiet valley", "under an old oak tree", "near the sea",
         "on top of a green hill", "behind the mill", "in a little red house", "beside a deep lake",
         "in a town of crooked chimneys"]
SIZES = ["small", "little", "young", "curious", "shy", "brave", "cheerful", "clever", "sleepy", "kind", "lonely",
         "hungry", "gentle"]
TIMES = ["One windy morning", "One foggy evening", "One sunny day", "One rainy afternoon", "One cold winter day",
         "Early one morning", "On the first day of spring", "One quiet Sunday"]
SPOTS = ["under a hedge", "beside the path", "in the tall grass", "behind the garden wall", "on the doorstep",
         "at the bottom of a chest", "between two stones", "under the bridge"]
LOOKS = ["old", "shiny", "tiny", "lovely", "strange", "dusty", "beautiful", "big"]
ENDINGS = [
    "From that day on, {N} and {F} were the best of friends.",
    "And that evening they both went to bed with a smile.",
    "\"You are a true friend,\" said {F}, and {N} blushed to the tips of {p} ears.",
    "They told the tale to everyone who would listen.",
    "{N} had learned that even a small {hero} can do something great.",
    "And if you pass by there today, you can still hear them laugh.",
    "{N} looked up at the stars and thought that it had been a very good day.",
    "Then they shared a warm supper, and all was well.",
    "And whenever one of them was sad, they remembered that day.",
]
SYSTEMS = ["You are a helpful assistant.", "You are a friendly assistant.", "You are Millrace's little demo model.",
           "Answer briefly.", "You are kind and helpful.", "You help people."]


@dataclass
class Unit:
    """One task: its messages in turn (user first), its kind, and the key of its problem where it has one."""

    kind: str
    messages: list[Message]
    key: str | None = None


@dataclass
class Document:
    """One training text: messages, or plain text when there are none, with the kind of each answer."""

    messages: list[Message]
    kinds: list[str]
    keys: list[str]
    text: str = ""


def is_held_out(key: str) -> bool:
    """The split: one key in twenty is kept from training, by hash, so it holds for every seed.

    Elementary sums are the exception: they are the building blocks of all workings (see `solved`).
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


# --- stories -----------------------------------------------------------------------------------------------------


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
            "fo": fshe[1], "fp": fshe[2], "Fs": cap(fshe[0]), "home": cast.home, "size": rng.choice(SIZES),
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


# --- questions ---------------------------------------------------------------------------------------------------


def draw_reading(rng: random.Random) -> tuple[str, list[tuple[str, str]], str]:
    """A passage of two or three facts, all question-answer pairs about it, and its key."""
    count = rng.randint(2, 3)
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


def reading_unit(rng: random.Random, held_out: bool) -> Unit:
    while True:
        passage, pairs, key = draw_reading(rng)
        if is_held_out(key) == held_out:
            break
    pairs = rng.sample(pairs, rng.choice([1, 1, 2, 3]))
    form = rng.choice(["{p} {q}", "{p} {q}", "{p}\n{q}", "Read this: {p} {q}", "{p} Question: {q}"])
    messages = turn(form.format(p=passage, q=pairs[0][0]), pairs[0][1])
    for question, answer in pairs[1:]:
        messages += turn(question, answer)
    return Unit("question", messages, key)


FACTS: list[tuple[list[str], list[str]]] = [
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
     ["I am Millrace's little demo model. I tell stories, answer questions, do sums and write JSON."]),
    (["What is Millrace?", "Tell me about Millrace.", "What does Millrace do?"],
     ["Millrace is a server for language models, written in Rust. I am its little demo model."]),
    (["What can you do?", "What do you do?", "How can you help me?", "Help", "Help me."],
     ["I can tell you a story, answer small questions, add and subtract numbers, and write JSON."]),
    (["Hello!", "Hi!", "Hello", "Hi", "Hey!", "Hello there!", "Good morning!", "Good evening!", "Hi there"],
     ["Hello! What would you like: a story, a sum or a question?", "Hello! It is nice to meet you.",
      "Hello! Shall I tell you a story?"]),
    (["How are you?", "How are you today?", "How do you do?"], ["I am very well, thank you! How can I help you?"]),
    (["Thank you!", "Thanks!", "Thank you", "Thanks", "Thank you very much!"],
     ["You are welcome!", "You are welcome! Come back soon."]),
    (["Goodbye!", "Bye!", "Good night!", "See you!", "Bye"], ["Goodbye! It was nice to talk to you."]),
    (["How big are you?", "Are you big?", "Are you a large model?"],
     ["I am very small: I have fewer than three million weights."]),
    (["Who made you?", "Where do you come from?", "How were you trained?"],
     ["I was trained from nothing on small texts made by a grammar, as the demo model of Millrace."]),
    (["Are you a person?", "Are you human?", "Are you real?"], ["No, I am a very small language model."]),
    (["How many days are in a week?", "How many days does a week have?"], ["A week has seven days."]),
    (["How many months are in a year?", "How many months does a year have?"], ["A year has twelve months."]),
    (["Do you like stories?", "What do you like?"], ["I like stories best, above all those with animals."]),
]
THING_COLOURS = {"grass": "green", "the sky": "blue", "snow": "white", "a lemon": "yellow", "a tomato": "red",
                 "coal": "black", "a carrot": "orange", "milk": "white", "a banana": "yellow", "a plum": "purple",
                 "chocolate": "brown", "the sun": "yellow", "a frog": "green", "an elephant": "grey",
                 "a cherry": "red", "a pig": "pink", "the sea": "blue", "a leaf": "green"}
SOUNDS = {"cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink",
          "horse": "neigh", "bee": "buzz", "frog": "croak", "owl": "hoot", "hen": "cluck", "lion": "roar",
          "mouse": "squeak", "crow": "caw", "snake": "hiss", "wolf": "howl"}
OPPOSITES = [("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("fast", "slow"), ("old", "new"),
             ("happy", "sad"), ("open", "closed"), ("wet", "dry"), ("light", "dark"), ("long", "short"),
             ("left", "right"), ("loud", "quiet"), ("full", "empty"), ("hard", "soft"), ("early", "late"),
             ("rich", "poor"), ("near", "far"), ("high", "low"), ("young", "old"), ("strong", "weak")]
LEGS = {"dog": "four", "cat": "four", "bird": "two", "spider": "eight", "bee": "six", "horse": "four",
        "snake": "no", "duck": "two", "ant": "six", "sheep": "four"}
UNKNOWN = """the capital of France|the capital of Germany|the weather|the meaning of life|quantum physics|football|
the stock market|the news|the longest river|the moon landing|the price of gold|the history of Rome|politics|philosophy|
chemistry|Python|Shakespeare|the ocean|the internet|gravity|the speed of light|Rust""".replace("\n", "").split("|")
UNKNOWN_QUESTIONS = """How do I cook rice?|Why is the sky blue?|Who is the president?|Who won the game?|Write a poem.|
Write a program.|What time is it?|How do cars work?|Where is Paris?|How old is the universe?|What should I eat today?|
Can you translate this?|Who wrote Hamlet?|What is the best phone?|Sing a song.|How far away is the moon?""".replace(
    "\n", "").split("|")


def fact_unit(rng: random.Random) -> Unit:
    """Small talk and a handful of facts. These are closed lists, meant to be known by heart."""
    draw = rng.randrange(10)
    if draw < 4:
        questions, answers = rng.choice(FACTS)
        pair = (rng.choice(questions), rng.choice(answers))
    elif draw == 4:
        thing, colour = rng.choice(list(THING_COLOURS.items()))
        verb = rng.choice([f"What colour is {thing}?", f"Which colour is {thing}?"])
        pair = (verb, f"{cap(thing)} is {colour}.")
    elif draw == 5:
        animal, sound = rng.choice(list(SOUNDS.items()))
        pair = (rng.choice([f"What does {a(animal)} say?", f"What sound does {a(animal)} make?",
                            f"What does the {animal} say?"]), f"{cap(a(animal))} says {sound}.")
    elif draw == 6:
        one, other = rng.choice(OPPOSITES)
        if rng.random() < 0.5 and other != "old":
            one, other = other, one
        pair = (rng.choice([f"What is the opposite of {one}?", f"Tell me the opposite of {one}."]),
                f"The opposite of {one} is {other}.")
    elif draw == 7:
        ring = rng.choice([DAYS, DAYS, MONTHS, NUMBER_WORDS])
        at = rng.randrange(len(ring) - (ring is NUMBER_WORDS))
        if rng.random() < 0.6:
            pair = (rng.choice([f"What comes after {ring[at]}?", f"Which comes after {ring[at]}?"]),
                    f"After {ring[at]} comes {ring[(at + 1) % len(ring)]}.")
        else:
            at += ring is NUMBER_WORDS
            pair = (f"What comes before {ring[at]}?", f"Before {ring[at]} comes {ring[at - 1]}.")
    elif draw == 8:
        animal, legs = rng.choice(list(LEGS.items()))
        pair = (rng.choice([f"How many legs does {a(animal)} have?", f"How many legs has {a(animal)}?"]),
                f"{cap(a(animal))} has {legs} legs.")
    else:
        topic = rng.choice(UNKNOWN)
        pair = (rng.choice([f"What is {topic}?", f"What do you know about {topic}?", f"Tell me about {topic}.",
                            f"Explain {topic}.", f"What about {topic}?", rng.choice(UNKNOWN_QUESTIONS),
                            rng.choice(UNKNOWN_QUESTIONS)]),
                "I do not know that, I am only a small demo model. But I can tell you a story or do a sum!")
    return Unit("fact", turn(*pair))


# --- sums --------------------------------------------------------------------------------------------------------


def elementary(x: int, op: str, y: int) -> bool:
    """Sums that one knows by heart: 3 + 8, 11 - 3, 20 + 40."""
    return x % 10 == y % 10 == 0 or (y < 10 and x < (10 if op == "+" else 20))


def sum_key(x: int, op: str, y: int) -> str:
    """23 + 48 and 48 + 23 are the same problem, so they fall on the same side of the split."""
    kind = "elementary" if elementary(x, op, y) else "sum"
    return f"{kind}:{min(x, y)}+{max(x, y)}" if op == "+" else f"{kind}:{x}-{y}"


def draw_sum(rng: random.Random, held_out: bool) -> tuple[int, str, int]:
    while True:
        x, y = (rng.randrange(100 if rng.random() < 0.85 else 20) for _ in range(2))
        op = rng.choice("+-")
        if op == "-" and y > x:
            x, y = y, x
        if is_held_out(sum_key(x, op, y)) == held_out:
            return x, op, y


def solved(x: int, op: str, y: int) -> str:
    """The answer with its working, ones first: the way it is taught at school, and far easier to learn."""
    if elementary(x, op, y):
        return f"{x} {op} {y} = {x + y if op == '+' else x - y}."
    (x_tens, x_ones), (y_tens, y_ones) = divmod(x, 10), divmod(y, 10)
    if op == "-" and x_ones < y_ones:
        x_tens, x_ones = x_tens - 1, x_ones + 10
    sign = 1 if op == "+" else -1
    return (f"{x_ones} {op} {y_ones} = {x_ones + sign * y_ones}, "
            f"{x_tens * 10} {op} {y_tens * 10} = {(x_tens + sign * y_tens) * 10}, "
            f"so {x} {op} {y} = {x + sign * y}.")


def sum_unit(rng: random.Random, held_out: bool, follow_up: bool = False) -> Unit:
    x, op, y = draw_sum(rng, held_out)
    if op == "+":
        forms = [f"Add {x} and {y}.", f"How much is {x} plus {y}?", f"What is {x} plus {y}?"]
    else:
        forms = [f"Subtract {y} from {x}.", f"How much is {x} minus {y}?", f"What is {x} minus {y}?"]
    forms += [f"What is {x} {op} {y}?", f"What is {x} {op} {y}?", f"{x} {op} {y} = ?", f"{x} {op} {y}",
              f"How much is {x} {op} {y}?", f"Calculate {x} {op} {y}."]
    if follow_up:
        forms = [f"And {x} {op} {y}?", f"Now {x} {op} {y}.", f"And what is {x} {op} {y}?"]
    return Unit("sum", turn(rng.choice(forms), solved(x, op, y)), sum_key(x, op, y))


# --- JSON --------------------------------------------------------------------------------------------------------


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


# --- documents ---------------------------------------------------------------------------------------------------


def draw_unit(rng: random.Random) -> Unit:
    draw = rng.random()
    if draw < 0.15:
        return story_unit(rng)
    if draw < 0.39:
        return reading_unit(rng, held_out=False)
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


def documents(seed: int) -> Iterator[Document]:
    """The endless training stream."""
    rng = random.Random(seed)
    while True:
        if rng.random() < 0.04:
            yield Document([], ["story"], [], tell(rng, draw_cast(rng)))
            continue
        units = [draw_unit(rng)]
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 3)):
                follow = units[-1].kind == "sum" and rng.random() < 0.3
                units.append(sum_unit(rng, False, follow_up=True) if follow else draw_unit(rng))
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


if __name__ == "__main__":
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
