"""Shards that die inside a container, memory that runs out, and a replica that is stopped."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from conftest import (
    PATIENCE,
    body,
    free_port,
    generate,
    inspect,
    request,
    running,
    status,
    stream,
    text_of,
    wait_until,
)

PROMPTS = [f"Once upon a time, {name} found a" for name in "Anna Ben Carl Dora Emil Fay Gus Hana".split()]


def test_a_shard_killed_while_eight_clients_stream_changes_no_text():
    # Half a core makes the answers last long enough to be interrupted.
    with running("--cpus=0.5", arguments=["--num-shard", "2"]) as container:
        container.wait_until_ready()
        undisturbed = [generate(container.port, prompt, 200) for prompt in PROMPTS]
        before = container.shards()
        assert len(before) == 2

        def killed_while_they_stream():
            """Kills a shard and compares the texts. Returns whether the streams were interrupted."""
            begun = threading.Barrier(len(PROMPTS) + 1, timeout=PATIENCE)

            def read(prompt):
                events = stream(container.port, prompt, 200)
                first = next(events)
                begun.wait()
                return text_of([first, *events])

            with ThreadPoolExecutor(len(PROMPTS)) as clients:
                texts = [clients.submit(read, prompt) for prompt in PROMPTS]
                begun.wait()
                os.kill(container.shards()[1], signal.SIGKILL)
                interrupted = not any(text.done() for text in texts)
                assert [text.result() for text in texts] == undisturbed
            container.wait_until("there are two shards", lambda: len(container.shards()) == 2)
            return interrupted

        # A test that is not run for a moment kills the shard too late, and tries again.
        assert any(killed_while_they_stream() for _ in range(5)), "no stream was interrupted"
        after = container.shards()
        assert len(after) == 2 and before[1] not in after
        assert not any(state.startswith("Z") for _, state, _ in container.processes()), container.processes()
        container.wait_until("it is healthy again", lambda: container.health() == "healthy")
        assert inspect(container.name, ".RestartCount") == 0
        assert container.stop(60) == 0


# Takes memory until it is killed, in the control group of the process that is its argument.
HOG = """
import pathlib, sys, time
for line in pathlib.Path(f"/proc/{sys.argv[1]}/cgroup").read_text().splitlines():
    number, controllers, path = line.split(":", 2)
    if "memory" in controllers or (number == "0" and not pathlib.Path("/sys/fs/cgroup/memory").exists()):
        folder = pathlib.Path("/sys/fs/cgroup", "memory" if controllers else "", path.lstrip("/"))
        (folder / "cgroup.procs").write_text("0")
blocks = []
for _ in range(400):
    blocks.append(b"x" * 1_000_000)
    time.sleep(0.002)
"""


def test_a_shard_that_the_memory_limit_kills_is_replaced():
    with running("--memory=300m", "--memory-swap=300m") as container:
        container.wait_until_ready()
        text = generate(container.port, PROMPTS[0], 60)
        (shard,) = container.shards()
        # Of all processes of the container, the kernel kills the one with the highest score.
        with open(f"/proc/{shard}/oom_score_adj", "w") as file:
            file.write("1000")
        subprocess.run([sys.executable, "-c", HOG, str(shard)], timeout=PATIENCE)
        container.wait_until("the shard is replaced", lambda: container.shards() not in ([], [shard]))
        container.wait_until_ready()
        assert generate(container.port, PROMPTS[0], 60) == text


@contextmanager
def balanced(folder, replicas, log):
    """Runs HAProxy in front of the replicas. It asks each for /ready, and sends a request to another
    one only if the first has refused it."""
    port = free_port()
    config = folder / "haproxy.cfg"
    servers = "\n".join(f"  server r{i} 127.0.0.1:{replica.port} check" for i, replica in enumerate(replicas))
    config.write_text(f"""
defaults
  mode http
  timeout connect {PATIENCE}s
  timeout client {PATIENCE}s
  timeout server {PATIENCE}s
  timeout check {PATIENCE}s
  retries 3
  option redispatch 1
  retry-on conn-failure 503
frontend clients
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance roundrobin
  option httpchk GET /ready
  default-server inter 200ms fall 1 rise 1
{servers}
""")
    with open(log, "w") as output:
        process = subprocess.Popen(["haproxy", "-db", "-f", config], stdout=output, stderr=output)
    try:
        wait_until("the balancer answers", lambda: status(port, "/ready") == 200)
        yield port
    finally:
        process.terminate()
        process.wait()


def test_two_replicas_lose_no_request_when_one_is_stopped(tmp_path):
    slow = ["--device", "null", "--null-step-micros", "10000", "--graceful-termination-timeout", "60"]
    with running(arguments=slow) as one, running(arguments=slow) as two:
        for replica in (one, two):
            replica.wait_until_ready()
        with balanced(tmp_path, [one, two], tmp_path / "log") as port:
            stopped, answers = threading.Event(), itertools.count()

            # The number of the last answer so far.
            last = deque([0], maxlen=1)

            def wait_for_more_answers():
                """Waits for more answers than requests are under way at a time."""
                enough = last[0] + 20
                wait_until("requests are answered", lambda: last[0] >= enough)

            def client(number):
                """Sends requests until one replica is gone, and returns the status of each."""
                results = []
                while not stopped.is_set() or len(results) < 3:
                    response = request(port, "POST", "/generate", body(f"{number} {len(results)}", 30))
                    text = response.read()
                    results.append((response.status, text[:200]))
                    last.append(next(answers))
                return results

            with ThreadPoolExecutor(8) as clients:
                sent = [clients.submit(client, number) for number in range(8)]
                try:
                    wait_for_more_answers()
                    assert one.stop(90) == 0
                    wait_for_more_answers()
                finally:
                    stopped.set()
                results = [result for answers in sent for result in answers.result()]
            failed = [result for result in results if result[0] != 200]
            print(f"{len(results)} requests, {len(failed)} failed")
            assert failed == [], failed[:3]
        assert two.state("Running") and two.stop(60) == 0
