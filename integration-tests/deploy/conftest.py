"""The files that are tested, and the built server."""

import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from time_limits import PATIENCE, free_port  # noqa: E402, F401  (it lies in the folder above)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# The tests talk to this machine only.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="session")
def binary():
    """Path of the built server."""
    path = os.environ.get("MILLRACE_BINARY")
    assert path, "MILLRACE_BINARY must name the built server; `cargo xtask deploy` sets it"
    return path


@pytest.fixture(scope="session")
def known_flags(binary):
    """Names of the flags that `millrace serve --help` lists."""
    shown = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", shown.stdout, re.MULTILINE))
    assert "--model-id" in flags and len(flags) > 50
    return flags


def flag_names(arguments):
    """Returns the names of the flags among `arguments`, which have the form --name=value."""
    return {argument.split("=")[0] for argument in arguments if argument.startswith("-")}


def with_ports(arguments, **ports):
    """Returns `arguments` with other values for the flags of ports."""
    replaced = []
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--").replace("-", "_")
        replaced.append(f"--{name.replace('_', '-')}={ports[name]}" if name in ports else argument)
    return replaced


def status(port, path):
    """Returns the status of a GET, or None if nobody listens."""
    try:
        with OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@contextmanager
def running(command, log, **variables):
    """Runs a process, and ends it with SIGTERM; it must end with exit code 0."""
    # Variables of this shell are also flags of the server, so it gets only what it needs.
    environment = {"PATH": os.environ["PATH"], **variables}
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield process
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0, pathlib.Path(log).read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until_ready(process, port, log):
    """Waits until /ready answers 200."""
    deadline = time.monotonic() + PATIENCE
    while status(port, "/ready") != 200:
        text = pathlib.Path(log).read_text()
        assert process.poll() is None, f"the server ended:\n{text}"
        assert time.monotonic() < deadline, f"the server did not become ready:\n{text}"
        time.sleep(0.1)
