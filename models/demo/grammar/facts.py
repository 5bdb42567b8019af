"""Small talk and a handful of facts. These are closed lists, meant to be known by heart."""

import random

from .units import Unit, a, cap, turn
from .words import DAYS

MONTHS = """January February March April May June July August September October November December""".split()
NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
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
    draw = rng.randrange(10)
    if draw < 4:
        questions, answers = rng.choice(FACTS)
        pair = (rng.choice(questions), rng.choice(answers))
    elif draw == 4:
        thing, colour = rng.choice(list(THING_COLOURS.items()))
        pair = (rng.choice([f"What colour is {thing}?", f"Which colour is {thing}?"]), f"{cap(thing)} is {colour}.")
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
