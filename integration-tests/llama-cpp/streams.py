"""Streams over HTTP: `millrace serve` and llama-server, one after the other on loopback.

Each server gets N streams at once, each with a prompt of 128 random token ids and an answer of 64 tokens. What is measured is the number
of tokens per second, from the first request to the last token. The time between tokens is not compared: random weights generate pieces of
characters, and both servers hold such tokens back.
"""

import concurrent.futures
import http.client
import json
import random
import socket
import subprocess
import sys
import time

import shapes

PROMPT, GENERATE = 128, 64
START_LIMIT, ANSWER_LIMIT = 120, 600


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def millrace_command(flags, port, options):
    return [
        options.millrace, "serve", "--model-id", shapes.folder(options.shape), "--load-format", "dummy", "--device", "cpu", "--port", port,
        "--cpus-per-shard", options.threads, *flags,
    ]


def llama_command(programs, path, port, options):
    context = options.streams * 2 * (PROMPT + GENERATE)
    return [
        programs / "llama-server", "-m", path, "--port", port, "--host", "127.0.0.1", "-t", options.threads, "-tb", options.threads,
        "-c", context, "-np", options.streams, "--no-webui",
    ]


class Refused(Exception):
    """The server answered with another status than 200."""


def wait_until_ready(server, port):
    """Waits until the server answers a short request."""
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and server.poll() is None:
        try:
            stream(port, [300, 301, 302], 4)
            return
        except (OSError, Refused):
            time.sleep(0.2)
    sys.exit(f"the server on port {port} is not ready after {START_LIMIT} s; its exit status is {server.poll()}")


def stream(port, prompt, tokens):
    """Sends one request. Returns the time of its last event and the number of its tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT)
    body = {
        "model": "any", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise Refused(f"status {response.status}: {response.read()[:300]}")
    last, count = time.monotonic(), None
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        count = (event.get("usage") or {}).get("completion_tokens", count)
        if event.get("choices"):
            last = time.monotonic()
    return last, count


def load(port, streams, seed):
    """Sends all streams at once, and returns tokens per second."""
    source = random.Random(seed)
    prompts = [[source.randrange(300, 31000) for _ in range(PROMPT)] for _ in range(streams)]
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        results = list(pool.map(lambda prompt: stream(port, prompt, GENERATE), prompts))
    end = max(last for last, _ in results)
    counts = [count for _, count in results]
    if any(count != GENERATE for count in counts):
        sys.exit(f"the streams have {counts} tokens instead of {GENERATE} each")
    return streams * GENERATE / (end - begin)


def measure(command, port, options, seed):
    """Starts a server, measures it, and ends it."""
    server = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server, port)
        return load(port, options.streams, seed)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def measure_both(programs, path, options, flags, seed):
    """Measures both servers on one format. Returns tokens per second by program."""
    found = {}
    for name, command in (
        ("llama.cpp", lambda port: llama_command(programs, path, port, options)),
        ("Millrace", lambda port: millrace_command(flags, port, options)),
    ):
        port = free_port()
        found[name] = measure(command(port), port, options, seed)
    return found
