"""Time limits of the Python tests, and ports. The folders of tests add this folder to `sys.path`."""

import itertools
import os
import socket

# The factor that stretches time limits, as in the Rust crate `integration-tests/patience`.
FACTOR = int(os.environ.get("MILLRACE_TEST_PATIENCE") or 1)
assert 1 <= FACTOR <= 1000, f"MILLRACE_TEST_PATIENCE={FACTOR}: not an integer from 1 to 1000"


def patience(seconds):
    """Returns a time limit that a busy machine does not use up."""
    return seconds * FACTOR


# The time in seconds after which a test gives up waiting. Nothing takes this long unless it is
# broken.
PATIENCE = patience(180)

_numbers = itertools.count(os.getpid() * 37)


def free_port():
    """Returns a port that no process listens on.

    The system chooses no such port by itself, and a process returns each port once, so nobody takes
    the port before the test uses it.
    """
    for number in _numbers:
        port = 12_000 + number % 20_000
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
