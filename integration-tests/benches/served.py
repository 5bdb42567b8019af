"""`millrace serve` on random weights of a shape, for the benchmarks beside this file."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MILLRACE = ROOT / "target/dist/millrace"


@contextlib.contextmanager
def shape_folder(shape="llama-1.1b"):
    """A temporary folder with the model, below which there may be other files."""
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / "base"
        base.mkdir()
        shutil.copy(ROOT / "integration-tests/benches" / shape / "config.json", base)
        shutil.copy(ROOT / "models/demo/tokenizer.json", base)
        yield base


def command(millrace, base, *flags):
    """The command of a server on the CPU."""
    return [millrace, "serve", base, "--load-format", "dummy", "--port", "0", "--device", "cpu", *map(str, flags)]


class Server:
    """A server that has loaded its model. It ends with the block that it is opened in."""

    def __init__(self, arguments):
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url, said = None, []
        for line in self.process.stdout:
            said.append(line)
            found = re.search(r"listening on (http://[0-9.]+:\d+)", line)
            self.url = found.group(1) if found else self.url
            if "ready after" in line:
                break
        else:
            sys.exit("".join(said))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def complete(self, prompt, tokens, **fields):
        """Returns the answer to a prompt of token ids, which has exactly so many tokens."""
        body = {"model": "base", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=1800) as response:
            answer = json.load(response)
        if answer["usage"]["completion_tokens"] != tokens:
            sys.exit(f"{answer['usage']} instead of {tokens} tokens")
        return answer
