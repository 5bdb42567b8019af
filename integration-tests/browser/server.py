"""The real server on loopback, and a client that needs no package."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from time_limits import PATIENCE, free_port  # noqa: E402  (it lies in the folder above)

# With this timeout, a shard that a test has stopped is not considered lost.
UNHURRIED = ["--heartbeat-timeout", "600", "--step-timeout", "600"]


class Server:
    """`millrace serve` with these flags. The port stays the same after a restart."""

    def __init__(self, binary: str, *flags: str):
        self.binary, self.flags, self.port = binary, flags, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [self.binary, "serve", "--port", str(self.port), *UNHURRIED, *self.flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.is_ready, "the server is ready")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "the server has ended"
        try:
            return urllib.request.urlopen(f"{self.url}/ready", timeout=PATIENCE).status == 200
        except OSError:
            return False

    def end(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait(PATIENCE)

    def get(self, path: str) -> str:
        return urllib.request.urlopen(self.url + path, timeout=PATIENCE).read().decode()

    def metric(self, name: str) -> float:
        return float(re.search(rf"^{name} (\S+)$", self.get(f"/metrics?name[]={name}"), re.M)[1])

    def post(self, path: str, body: dict):
        """Returns the open response."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=PATIENCE)

    @contextmanager
    def busy(self):
        """Makes the model generate long answers until the block ends."""
        body = {"prompt": "Once upon a time", "max_tokens": 950, "ignore_eos": True, "n": 4}
        ended = threading.Event()

        def ask():
            while not ended.is_set():
                self.post("/v1/completions", body).read()

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()

    @contextmanager
    def occupied(self):
        """Sends one request that is not answered within the block, because the shards are
        stopped."""
        with self.frozen():
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            body = json.dumps({"prompt": "Once upon a time"})
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            wait_until(lambda: self.load() > 0, "it is taken in")
            try:
                yield
            finally:
                connection.close()

    def load(self) -> float:
        """Returns the number of requests that run or wait."""
        return self.metric("tgi_batch_current_size") + self.metric("tgi_queue_size")

    def kill_shards(self):
        [os.kill(shard, signal.SIGKILL) for shard in shards_below(self.process.pid)]

    @contextmanager
    def frozen(self):
        """Stops the shards, so that requests are neither answered nor refused."""
        shards = shards_below(self.process.pid)
        assert shards
        [os.kill(shard, signal.SIGSTOP) for shard in shards]
        try:
            yield
        finally:
            for shard in shards:
                with suppress(ProcessLookupError):
                    os.kill(shard, signal.SIGCONT)


def shards_below(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    children = [line.split(maxsplit=1) for line in listed.splitlines()]
    shards = [int(child) for child, command in children if " shard" in command]
    return shards + [shard for child, _ in children for shard in shards_below(int(child))]


def wait_until(holds, what: str):
    since = time.monotonic()
    while not holds():
        assert time.monotonic() - since < PATIENCE, f"timed out waiting until {what}"
        time.sleep(0.02)
