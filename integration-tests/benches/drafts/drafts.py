"""Measures `millrace serve --speculate` beside the same server without it, on random weights of the 1.1B Llama shape.

drafts.py [--rounds N] [--streams 1,4,16] [--drafts N] [--quantize FORMAT] [--millrace BINARY]

Random weights repeat nothing by themselves, so a bias on the logits makes three kinds of answers: one token again and again (every guess is
right, which is the most that drafts can gain), two tokens at random (half of the first guesses are right), and any text (no guess is right,
which shows what guessing costs). Both servers run on loopback and answer in turns. The best rounds are printed as a Markdown table in tokens per
second; a difference between the texts ends the program. Nothing else may run meanwhile.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
GENERATE = 96
KINDS = {
    "one token": {"temperature": 0, "logit_bias": {"99": 100}},
    "two tokens at random": {"temperature": 1, "logit_bias": {"99": 100, "77": 100}},
    "random text": {"temperature": 1},
}


class Server:
    """A server that has loaded its model."""

    def __init__(self, arguments):
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url = None
        for line in self.process.stdout:
            found = re.search(r"listening on (http://[0-9.]+:\d+)", line)
            self.url = found.group(1) if found else self.url
            if "ready after" in line:
                break
        else:
            sys.exit(f"{arguments[0]} ended before it was ready")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def answer(self, seed, kind):
        prompt = [(7 * seed + i * i) % 900 + 3 for i in range(64)]
        body = {"model": "m", "prompt": prompt, "max_tokens": GENERATE, "ignore_eos": True, "seed": seed, **kind}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)["choices"][0]["text"]

    def answers(self, seeds, kind):
        """The texts of streams that start together, and their tokens per second."""
        since = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(len(seeds)) as streams:
            texts = list(streams.map(lambda seed: self.answer(seed, kind), seeds))
        return texts, len(seeds) * GENERATE / (time.monotonic() - since)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--quantize", default="q4_0")
    parser.add_argument("--millrace", default=ROOT / "target/dist/millrace")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "integration-tests/benches/llama-1.1b/config.json", folder)
        shutil.copy(ROOT / "models/demo/tokenizer.json", folder)
        command = [options.millrace, "serve", folder, "--load-format", "dummy", "--port", "0", "--device", "cpu"]
        command += ["--quantize", options.quantize]
        servers = [Server(command), Server([*command, "--speculate", str(options.drafts)])]
        try:
            measure(servers, options)
        finally:
            for server in servers:
                server.process.terminate()


def measure(servers, options):
    print("| answer | streams | without | with drafts | ratio |\n|---|--:|--:|--:|--:|")
    for name, kind in KINDS.items():
        for streams in map(int, options.streams.split(",")):
            best = [0.0, 0.0]
            for number in range(options.rounds):
                seeds = range(100 * number, 100 * number + streams)
                results = [server.answers(seeds, kind) for server in servers]
                if results[0][0] != results[1][0]:
                    sys.exit(f"{name}: drafts change the text")
                best = [max(speed, result[1]) for speed, result in zip(best, results)]
            without, drafted = best
            print(f"| {name} | {streams} | {without:.0f} | {drafted:.0f} | {drafted / without:.2f} |", flush=True)


if __name__ == "__main__":
    main()
