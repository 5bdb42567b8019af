"""Measures how much the gaps of a running stream grow while very long conversations arrive, on shards that make tokens up.

gaps.py [--tokens N] [--new N] [--rate N] [--seconds N] [--step MICROSECONDS] [--millrace BINARY]

One stream runs all the time, with a token in each step of `--step`. It is measured alone first. Then clients send `--rate` conversations a
second: about `--tokens` tokens of messages that the server has seen before, and a new message of about `--new` tokens; each asks for one
token. Rendering, tokenizing, hashing and copying of these prompts must not delay the stream. Printed as a Markdown table are the gaps of the
stream (median, 99th percentile, longest) and the latency of the conversations. Nothing else may run meanwhile.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse

from served import MILLRACE, ROOT, Server

# The positions of the demo model, whose own are too few.
POSITIONS = 1 << 18


@contextlib.contextmanager
def model_folder():
    """A temporary copy of the demo model for long conversations."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "model"
        shutil.copytree(ROOT / "models/demo", copy)
        config = json.loads((copy / "config.json").read_text())
        config["max_position_embeddings"] = POSITIONS
        (copy / "config.json").write_text(json.dumps(config))
        yield copy


def connect(url):
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=600)


def post(url, path, body):
    """Returns the answer to a JSON text."""
    connection = connect(url)
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    if response.status != 200:
        sys.exit(f"{path}: {response.status} {text[:300]}")
    return json.loads(text)


def line(number):
    noun = ["lantern", "fox", "hill", "river", "market", "engine"][number % 6]
    return f"The {noun} number {number} was seen near the old mill.\n"


def messages(url, tokens):
    """A conversation of about this many tokens in 40 messages."""
    sample = "".join(map(line, range(100)))
    per_line = post(url, "/tokenize", json.dumps({"prompt": sample}))["count"] / 100
    each = int(tokens / per_line / 40)
    said = ["".join(map(line, range(turn * each, (turn + 1) * each))) for turn in range(40)]
    return [{"role": ["user", "assistant"][turn % 2], "content": text} for turn, text in enumerate(said)]


class Stream:
    """A stream that runs until the end of the program, and the times at which its tokens came."""

    def __init__(self, url):
        self.times = []
        self.connection = connect(url)
        body = {"model": "tgi", "prompt": "Once", "max_tokens": POSITIONS // 2, "ignore_eos": True, "stream": True}
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for event in self.connection.getresponse():
            if event.startswith(b"data: {"):
                self.times.append(time.monotonic())

    def close(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def gaps(self, since):
        """The gaps in milliseconds between tokens that came after a time."""
        times = [at for at in self.times if at > since]
        return [1e3 * (later - at) for at, later in zip(times, times[1:])]


def row(name, gaps, latencies):
    ordered = sorted(gaps)
    latency = f"{statistics.median(latencies):.2f} s" if latencies else ""
    print(
        f"| {name} | {len(gaps)} | {statistics.median(gaps):.1f} ms | {ordered[int(0.99 * len(ordered))]:.1f} ms"
        f" | {ordered[-1]:.1f} ms | {latency} |",
        flush=True,
    )
    return ordered


def arrive(url, history, options):
    """Sends conversations at the rate for some time. Returns the latency of each in seconds."""
    latencies, clients = [], []
    shared = json.dumps({"model": "tgi", "max_tokens": 1, "messages": history})[: -len("]}")]

    def ask(number):
        words = " ".join(f"word{number}x{index}" for index in range(options.new // 4))
        since = time.monotonic()
        post(url, "/v1/chat/completions", shared + ", " + json.dumps({"role": "user", "content": words}) + "]}")
        latencies.append(time.monotonic() - since)

    begun = time.monotonic()
    for number in range(int(options.seconds * options.rate)):
        time.sleep(max(0.0, begun + number / options.rate - time.monotonic()))
        clients.append(threading.Thread(target=ask, args=(number,)))
        clients[-1].start()
    for client in clients:
        client.join()
    return latencies


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--rate", type=float, default=8)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--step", type=int, default=20_000)
    parser.add_argument("--millrace", default=MILLRACE)
    options = parser.parse_args()
    # A step takes the same time whatever is in it, so that only the router can delay the stream.
    flags = ["--device", "null", "--null-step-micros", options.step, "--null-token-nanos", 0, "--null-key-nanos", 0]
    flags += ["--max-batch-total-tokens", 4 * POSITIONS, "--max-batch-prefill-tokens", 8192]
    flags += ["--max-concurrent-requests", 256, "--port", 0]
    with model_folder() as model:
        arguments = [str(part) for part in [options.millrace, "serve", model, *flags]]
        with Server(arguments) as server, contextlib.ExitStack() as until_end:
            history = messages(server.url, options.tokens)
            stream = Stream(server.url)
            # The server ends only after the stream.
            until_end.callback(stream.close)
            asked = json.dumps({"model": "tgi", "max_tokens": 1, "messages": history})
            prompt = post(server.url, "/v1/chat/completions", asked)["usage"]["prompt_tokens"]
            time.sleep(1)
            print(f"| {prompt} tokens, {options.rate:g} a second | gaps | median | 99th percentile | longest | latency |")
            print("|---|--:|--:|--:|--:|--:|", flush=True)
            since = time.monotonic()
            time.sleep(options.seconds)
            alone = row("the stream alone", stream.gaps(since), [])
            since = time.monotonic()
            latencies = arrive(server.url, history, options)
            beside = row("beside the conversations", stream.gaps(since), latencies)
    growth = beside[int(0.99 * len(beside))] - alone[int(0.99 * len(alone))]
    print(f"\nThe 99th percentile grows by {growth:.1f} ms.")


if __name__ == "__main__":
    main()
