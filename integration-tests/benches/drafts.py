"""Measures `millrace serve --speculate` beside the same server without it, on random weights.

drafts.py [--shape llama-1.1b|qwen3.5-0.8b] [--rounds N] [--streams 1,4,16] [--drafts N] [--method ngram|suffix|draft_model|mtp] [--quantize FORMAT] [--millrace BINARY]

Random weights repeat nothing by themselves, so a bias on the logits makes three kinds of answers: one token again and again (every guess is
right, which is the most that drafts can gain), two tokens at random (half of the first guesses are right), and any text (no guess is right,
which shows what guessing costs). The fourth measure is the same random text for the second time, which the method `suffix` has seen. The method
`draft_model` guesses with the shape llama-160m; the bias makes it say what the model says, and it is wrong about random text. With `mtp` the head of the shape qwen3.5-0.8b guesses. Both servers run on loopback and answer in turns. The best rounds are printed as a Markdown table in tokens per
second; a difference between the texts ends the program. Nothing else may run meanwhile.
"""

import argparse
import concurrent.futures
import json
import sys
import time

from served import MILLRACE, Server, command, shape_folder

GENERATE = 96
AGAIN = "random text, the second time"
KINDS = {
    "one token": {"temperature": 0, "logit_bias": {"99": 100}},
    "two tokens at random": {"temperature": 1, "logit_bias": {"99": 100, "77": 100}},
    "random text": {"temperature": 1},
    AGAIN: {"temperature": 1},
}


def answer(server, seed, kind):
    prompt = [(7 * seed + i * i) % 900 + 3 for i in range(64)]
    return server.complete(prompt, GENERATE, seed=seed, **kind)["choices"][0]["text"]


def answers(server, seeds, kind):
    """The texts of streams that start together, and their tokens per second."""
    since = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(seeds)) as streams:
        texts = list(streams.map(lambda seed: answer(server, seed, kind), seeds))
    return texts, len(seeds) * GENERATE / (time.monotonic() - since)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["llama-1.1b", "qwen3.5-0.8b"], default="llama-1.1b")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--method", choices=["ngram", "suffix", "draft_model", "mtp"], default="ngram")
    parser.add_argument("--quantize", default="q4_0")
    parser.add_argument("--millrace", default=MILLRACE)
    options = parser.parse_args()
    config = {"method": options.method, "num_speculative_tokens": options.drafts}
    with shape_folder(options.shape) as base, shape_folder("llama-160m") as draft:
        if options.method == "draft_model":
            config["model"] = str(draft)
        without = command(options.millrace, base, "--quantize", options.quantize)
        with Server(without) as server, Server([*without, "--speculative-config", json.dumps(config)]) as drafting:
            measure([server, drafting], options)


def measure(servers, options):
    print("| answer | streams | without | with drafts | ratio |\n|---|--:|--:|--:|--:|")
    for name, kind in KINDS.items():
        for streams in map(int, options.streams.split(",")):
            best = [0.0, 0.0]
            for number in range(options.rounds):
                first = 100 * number + 1000 * list(KINDS).index(name)
                seeds = range(first, first + streams)
                if name == AGAIN:
                    for server in servers:
                        answers(server, seeds, kind)
                results = [answers(server, seeds, kind) for server in servers]
                if results[0][0] != results[1][0]:
                    sys.exit(f"{name}: drafts change the text")
                best = [max(speed, result[1]) for speed, result in zip(best, results)]
            without, drafted = best
            print(f"| {name} | {streams} | {without:.0f} | {drafted:.0f} | {drafted / without:.2f} |", flush=True)


if __name__ == "__main__":
    main()
