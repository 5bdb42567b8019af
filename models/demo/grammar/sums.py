"""Additions and subtractions of numbers up to 99, with their working."""

import random

from .units import Unit, is_held_out, turn


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
