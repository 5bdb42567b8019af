"""Tests aider, unchanged, on a scripted model: it applies the model's edit of a file."""

import os
import subprocess
from pathlib import Path

EDIT = """\
I change the greeting.

greeting.txt
```
<<<<<<< SEARCH
Good morning
=======
Good evening
>>>>>>> REPLACE
```
"""
HELLO = "Hello! I am the scripted model behind aider."


def aider(serve, folder, *arguments):
    server = serve([{"when": "'evening' in text", "say": EDIT}, {"when": "true", "say": HELLO}])
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENAI_API_KEY": server.key}
    command = [os.environ["MILLRACE_AIDER"], "--model", "openai/scripted", "--openai-api-base", f"{server.url}/v1"]
    command += ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-analytics"]
    command += ["--edit-format", "diff", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, timeout=200, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_chat(serve, tmp_path):
    assert HELLO in aider(serve, tmp_path, "--message", "Hello", "--no-stream").replace("\n", " ")


def test_edit(serve, tmp_path):
    file = Path(tmp_path / "greeting.txt")
    file.write_text("Good morning\n")
    aider(serve, tmp_path, "--message", "Make it evening", "--file", "greeting.txt")
    assert file.read_text() == "Good evening\n"
