"""Measures what clients notice when shards are killed, with one group of shards and with several, on the demo model.

losses.py [--replicas N] [--clients N] [--seconds N] [--every SECONDS] [--millrace BINARY]

Clients send the same requests again and again, greedy and seeded ones. Every few seconds one shard is killed. Printed as a Markdown table are
the requests, and their latency: median, 99th percentile and longest. A text that differs from the text of an undisturbed server, or a request
that fails, ends the program.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from served import MILLRACE, Server


def request(url, number):
    """Returns the text of a request."""
    parameters = {"max_new_tokens": 420, "stop": ["\x01"]}
    if number % 2:
        parameters |= {"do_sample": True, "temperature": 0.9, "seed": number}
    body = json.dumps({"inputs": f"Once upon a time there were {number} foxes", "parameters": parameters})
    asked = urllib.request.Request(f"{url}/generate", body.encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return json.load(answer)["generated_text"]


class Clients:
    """Clients that run until they are stopped."""

    def __init__(self, url, expected):
        self.url, self.expected = url, expected
        self.over, self.wrong, self.latencies = False, [], []
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(len(expected))]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        while not self.over:
            since = time.monotonic()
            try:
                text = request(self.url, number)
            except OSError as error:
                self.wrong.append(f"request {number}: {error}")
                return
            if text != self.expected[number]:
                self.wrong.append(f"request {number} has another text")
            self.latencies.append(time.monotonic() - since)

    def stop(self):
        self.over = True
        for thread in self.threads:
            thread.join()
        if self.wrong:
            sys.exit("\n".join(self.wrong))
        return sorted(self.latencies)


def shards(server):
    """The process ids of the server's shards."""
    listed = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(server.process.pid)]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if line.split()[2] == "shard"]


def measure(options, replicas, expected):
    """Prints a row."""
    arguments = [options.millrace, "serve", "--port", "0", "--device", "cpu", "--replicas", str(replicas)]
    with Server([str(part) for part in arguments]) as server:
        clients, killed = Clients(server.url, expected), 0
        for _ in range(int(options.seconds / options.every)):
            time.sleep(options.every)
            running = shards(server)
            if running:
                os.kill(random.choice(running), signal.SIGKILL)
                killed += 1
        latencies = clients.stop()
    middle, late = statistics.median(latencies), latencies[int(0.99 * len(latencies))]
    print(f"| {replicas} | {killed} | {len(latencies)} | {middle:.2f} s | {late:.2f} s | {latencies[-1]:.2f} s |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--millrace", default=MILLRACE)
    options = parser.parse_args()
    with Server([str(options.millrace), "serve", "--port", "0", "--device", "cpu"]) as server:
        expected = [request(server.url, number) for number in range(options.clients)]
    print("| groups | shards killed | requests | median latency | 99th percentile | longest |\n|--:|--:|--:|--:|--:|--:|")
    for replicas in [1, options.replicas]:
        measure(options, replicas, expected)


if __name__ == "__main__":
    main()
