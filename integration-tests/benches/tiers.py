"""Measures conversations of agents that are longer than the KV cache, with a prefix cache on disk and without, on random weights of the
1.1B Llama shape.

tiers.py [--conversations N] [--turns N] [--new N] [--memory N] [--quantize FORMAT] [--millrace BINARY]

N conversations take turns. Each turn sends the whole conversation and so many new tokens, and asks for one token. The KV cache has room for
`--memory` conversations of full length. Two servers answer the same turns, one after the other. Printed as a Markdown table are the share of
the prompts' tokens that were cached, and the time to the answer: of all turns after the first of each conversation together, and the median.
A third server starts with the files of one before it, and answers the last turn of the first conversation again. A difference between the
answers ends the program. Nothing else may run meanwhile.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time

from served import MILLRACE, Server, command, shape_folder


def turns(options):
    """The prompts of all turns, in their order, as numbers of a conversation and a turn with token ids."""
    source = random.Random(0)
    conversations = [[] for _ in range(options.conversations)]
    for turn in range(options.turns):
        for number, tokens in enumerate(conversations):
            tokens += [source.randrange(300, 3000) for _ in range(options.new)]
            yield number, turn, list(tokens)


def ask(server, prompt):
    """Returns the text of an answer of one token, the cached tokens of its prompt, and seconds."""
    since = time.monotonic()
    answer = server.complete(prompt, 1, temperature=0)
    seconds = time.monotonic() - since
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"], seconds


def measure(server, options, name):
    """Answers all turns, and prints a row. Returns the texts and the seconds after the first turns."""
    texts, prompts, cached, seconds = [], 0, 0, []
    for _, turn, prompt in turns(options):
        text, found, took = ask(server, prompt)
        texts.append(text)
        if turn > 0:
            prompts, cached = prompts + len(prompt), cached + found
            seconds.append(took)
    print(
        f"| {name} | {cached / prompts:.1%} | {sum(seconds):.1f} s | {statistics.median(seconds):.2f} s |", flush=True
    )
    return texts, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--new", type=int, default=500, help="new tokens of a turn")
    parser.add_argument("--memory", type=int, default=3, help="conversations that fit the KV cache")
    parser.add_argument("--quantize", default="q4_0")
    parser.add_argument("--millrace", default=MILLRACE)
    options = parser.parse_args()
    longest = options.turns * options.new + 16
    flags = ["--quantize", options.quantize, "--max-total-tokens", longest, "--max-batch-total-tokens", options.memory * longest]
    with shape_folder() as base, tempfile.TemporaryDirectory() as disk:
        on_disk = [*flags, "--kv-disk", f"{disk},20G", "--kv-persist"]
        print("| prefix cache | cached tokens of later turns | time of all later turns | median |\n|---|--:|--:|--:|")
        with Server(command(options.millrace, base, *flags)) as server:
            texts, without = measure(server, options, "in memory")
        with Server(command(options.millrace, base, *on_disk)) as server:
            again, tiered = measure(server, options, "in memory and on disk")
        if texts != again:
            sys.exit("the disk changes an answer")
        ratio = statistics.median(tiered) / statistics.median(without)
        print(f"\nThe median with the disk is {ratio:.2f} of that without it.")
        number, _, prompt = [turn for turn in turns(options) if turn[0] == 0][-1]
        with Server(command(options.millrace, base, *on_disk)) as server:
            text, found, took = ask(server, prompt)
        if text != texts[-options.conversations + number]:
            sys.exit("a restart changes an answer")
        print(
            f"After a restart, {found} of {len(prompt)} tokens were cached, and the answer took {took:.2f} s instead of "
            f"{without[-options.conversations + number]:.2f} s."
        )


if __name__ == "__main__":
    main()
