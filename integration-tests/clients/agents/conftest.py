"""Starts servers on scripted models for the tests of this folder. `cargo xtask agents` runs them
in a network namespace without access to other networks."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
import scripted  # noqa: E402  (it lies in the folder above)
from time_limits import PATIENCE  # noqa: E402  (it lies in the folder above that one)

KEY = "a-key-for-tests"


class Server:
    """A running server: its `url` without a trailing path, and the `key` that requests need."""

    def __init__(self, folder, log, flags):
        self.key = KEY
        self.log = log
        binary = os.environ["MILLRACE_BINARY"]
        command = [binary, "serve", str(folder), "--port", "0", "--api-key", KEY, *flags]
        self.process = subprocess.Popen(command, stderr=log.open("w"))
        try:
            self.url = self.says(r"listening on (http://\S+)")[1]
            self.says(r"ready after")
        except Exception:
            self.stop()
            raise

    def says(self, pattern):
        """Waits until the log has a line that matches."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found
            time.sleep(0.02)
        raise RuntimeError(f"the server never said {pattern!r}:\n{self.log.read_text()}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """Returns `serve(rules, *flags)`, which starts a server on a model with these rules; see
    scripted.py."""
    servers = []

    def start(rules=None, *flags):
        folder = tmp_path_factory.mktemp("server")
        scripted.write(folder / "scripted", rules or scripted.DEFAULT)
        servers.append(Server(folder / "scripted", folder / "log", flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(serve):
    """A server with the default script."""
    return serve()


@pytest.fixture(scope="session")
def node():
    """The folder with `node_modules`, which contains the clients from npm."""
    return Path(os.environ["MILLRACE_AGENTS_NODE"])
