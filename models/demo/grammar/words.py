"""The words that answers copy.

The lists are short, and the tokenizer knows each word whole (see train.py), so that even a very small model copies
them faithfully.
"""

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
