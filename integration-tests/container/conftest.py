"""Containers of the built image, and clients of the servers in them."""

import http.client
import json
import os
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from time_limits import PATIENCE, free_port  # noqa: E402  (it lies in the folder above)

IMAGE = "millrace:cpu"
# How the documentation runs the image, besides its ports.
CONFINED = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--memory=1g"]


@pytest.fixture(scope="session", autouse=True)
def engine():
    """Fails early if the engine of `cargo xtask container` is not there."""
    assert "DOCKER_HOST" in os.environ, "run these tests with `cargo xtask container`"
    docker("image", "inspect", IMAGE)


def docker(*arguments, check=True, timeout=PATIENCE):
    """Runs the client, and returns its standard output."""
    done = subprocess.run(
        ["/usr/bin/docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout
    )
    assert not check or done.returncode == 0, f"docker {arguments}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def inspect(name, path):
    """Returns a part of what the engine knows about a container or image."""
    return json.loads(docker("inspect", "--format", "{{json " + path + "}}", name))


def wait_until(what, holds, log=lambda: ""):
    """Polls until `holds` returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        result = holds()
        if result:
            return result
        assert time.monotonic() < deadline, f"timed out waiting until {what}\n{log()}"
        time.sleep(0.05)


class Container:
    """A container whose port 80 is published on a port of this machine."""

    def __init__(self, name, port):
        self.name, self.port = name, port

    def log(self):
        done = subprocess.run(["/usr/bin/docker", "logs", self.name], capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr

    def state(self, key):
        return inspect(self.name, f".State.{key}")

    def health(self):
        return self.state("Health")["Status"]

    def wait_until(self, what, holds):
        def checked():
            assert self.state("Running"), f"the container ended while waiting until {what}:\n{self.log()}"
            return holds()

        return wait_until(what, checked, self.log)

    def wait_until_ready(self):
        self.wait_until("the server is ready", lambda: status(self.port, "/ready") == 200)

    def stop(self, seconds):
        """Sends SIGTERM, waits, and returns the exit code; after `seconds` the engine kills it."""
        docker("stop", f"--time={seconds}", self.name, timeout=seconds + PATIENCE)
        return self.state("ExitCode")

    def processes(self):
        """Returns (pid on this machine, state, command line) of all processes."""
        rows = docker("top", self.name, "-o", "pid,stat,args").splitlines()[1:]
        return [(int(row.split()[0]), row.split()[1], row.split(maxsplit=2)[2]) for row in rows]

    def shards(self):
        return [pid for pid, _, command in self.processes() if " shard " in command]


@contextmanager
def running(*options, arguments=(), image=IMAGE, confined=True):
    """Runs the image, with port 80 published, and removes the container at the end."""
    port = free_port()
    name = f"millrace-{uuid.uuid4().hex[:12]}"
    if confined:
        options = (*CONFINED, *options)
    try:
        docker("run", "--detach", f"--name={name}", f"--publish={port}:80", *options, image, *arguments)
        yield Container(name, port)
    finally:
        docker("rm", "--force", "--volumes", name, check=False)


def request(port, method, path, body=None, timeout=PATIENCE):
    """Sends a request and returns the response, whose body is not read yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"content-type": "application/json"} if body is not None else {}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    return connection.getresponse()


def status(port, path):
    """Returns the status of a GET, or None if nobody answers."""
    try:
        return request(port, "GET", path).status
    except (OSError, http.client.HTTPException):
        return None


def generate(port, prompt, tokens, **parameters):
    """Returns the greedy continuation of a prompt."""
    response = request(port, "POST", "/generate", body(prompt, tokens, **parameters))
    text = response.read()
    assert response.status == 200, text
    return json.loads(text)["generated_text"]


def body(prompt, tokens, **parameters):
    return {"inputs": prompt, "parameters": {"max_new_tokens": tokens, "do_sample": False, **parameters}}


def stream(port, prompt, tokens):
    """Yields the events of a streamed answer."""
    response = request(port, "POST", "/generate_stream", body(prompt, tokens))
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


def text_of(events):
    """Returns the text of a stream that has ended, and fails if it ended with an error."""
    events = list(events)
    assert events and "error" not in events[-1], events[-1:]
    whole = events[-1]["generated_text"]
    assert whole is not None
    return whole
