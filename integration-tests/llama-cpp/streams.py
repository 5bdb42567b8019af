"""Measures `millrace serve` beside llama-server: streams over HTTP, on random weights of the same shape and format.

streams.py [--rounds N] [--formats bf16,q8_0] [--streams N] [--threads N] [--millrace BINARY]

It uses what compare.py has built, and builds it if it is missing. Each round starts one server after the other on loopback and sends it N
streams at once, each with a prompt of 128 random token ids and an answer of 64 tokens. The medians over the rounds are printed as a Markdown
table: generated tokens per second, from the first request to the last token, and the time between tokens. Nothing else may run meanwhile.
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time

import compare

PROMPT, GENERATE = 128, 64
START_LIMIT, ANSWER_LIMIT = 120, 600


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def millrace_command(binary, name, port, options):
    return [
        binary, "serve", "--model-id", compare.SHAPE, "--load-format", "dummy", "--device", "cpu", "--port", port,
        "--cpus-per-shard", options.threads, *compare.FORMATS[name][0],
    ]


def llama_command(programs, path, port, options):
    context = options.streams * 2 * (PROMPT + GENERATE)
    return [
        programs / "llama-server", "-m", path, "--port", port, "--host", "127.0.0.1", "-t", options.threads, "-tb", options.threads,
        "-c", context, "-np", options.streams, "--no-webui",
    ]


def wait_until_ready(server, port):
    """Waits until the server answers that it is healthy."""
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"the server on port {port} is not ready after {START_LIMIT} s; its exit status is {server.poll()}")


def stream(port, prompt, tokens):
    """Sends one request. Returns the arrival times of its events and the number of its tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT)
    body = {
        "model": "any", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"status {response.status}: {response.read()[:300]}")
    times, count = [], None
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        count = (event.get("usage") or {}).get("completion_tokens", count)
        if event.get("choices"):
            times.append(time.monotonic())
    return times, count


def load(port, streams, seed):
    """Sends all streams at once, and returns tokens per second and the median and 99th percentile of the milliseconds between events."""
    source = random.Random(seed)
    prompts = [[source.randrange(300, 31000) for _ in range(PROMPT)] for _ in range(streams)]
    stream(port, prompts[0][:8], 4)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        results = list(pool.map(lambda prompt: stream(port, prompt, GENERATE), prompts))
    end = max(times[-1] for times, _ in results)
    counts = [count for _, count in results]
    if any(count != GENERATE for count in counts):
        sys.exit(f"the streams have {counts} tokens instead of {GENERATE} each")
    gaps = sorted(1000 * (b - a) for times, _ in results for a, b in zip(times, times[1:]))
    return streams * GENERATE / (end - begin), statistics.median(gaps), gaps[len(gaps) * 99 // 100]


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=compare.positive, default=3)
    parser.add_argument("--formats", default="bf16,q8_0")
    parser.add_argument("--streams", type=compare.positive, default=16)
    parser.add_argument("--threads", type=compare.positive, default=2)
    parser.add_argument("--jobs", type=compare.positive, default=2)
    parser.add_argument("--millrace", type=pathlib.Path, default=compare.ROOT / "target" / "release" / "millrace")
    options = parser.parse_args()
    compare.install()
    programs = compare.build(options.jobs)
    print("| weights | server | generated tokens/s | between tokens, median | p99 |\n|---|---|--:|--:|--:|")
    for name in options.formats.split(","):
        path = compare.weights(programs, name)
        found = {"llama-server": [], "millrace": []}
        for seed in range(options.rounds):
            port = free_port()
            found["llama-server"].append(measure(llama_command(programs, path, port, options), port, options, seed))
            port = free_port()
            found["millrace"].append(measure(millrace_command(options.millrace, name, port, options), port, options, seed))
        for server, rows in found.items():
            speed, median, p99 = (statistics.median(row[i] for row in rows) for i in range(3))
            print(f"| {name} | {server} | {speed:.1f} | {median:.0f} ms | {p99:.0f} ms |")
        ratio = statistics.median(ours[0] / theirs[0] for ours, theirs in zip(found["millrace"], found["llama-server"]))
        print(f"| {name} | ratio | {ratio:.2f} | | |", flush=True)


if __name__ == "__main__":
    main()
