"""Tests opencode, unchanged, on a scripted model: a chat and a turn with its tool that reads
files."""

import json
import os
import subprocess

import pytest
import scripted

SECRET = "The word of the day is heliotrope."
READ = "The file was read, and it speaks of heliotrope."
HELLO = "Hello! I am the scripted model behind opencode."
TITLE = "A short title"


@pytest.fixture
def opencode(serve, node, tmp_path):
    """Runs `opencode run` in its own folder and returns its output."""

    def run(prompt):
        secret = tmp_path / "work/secret.txt"
        secret.parent.mkdir()
        secret.write_text(SECRET)
        server = serve([
            {"when": "last == 'tool' and 'heliotrope' in result", "say": READ},
            {"when": "tools and 'secret' in text", "say": scripted.call("read", {"filePath": str(secret)})},
            {"when": "tools", "say": HELLO},
            {"when": "true", "say": TITLE},
        ])
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{server.url}/v1", "apiKey": server.key},
            "models": {"scripted": {"limit": {"context": 131072, "output": 4096}}},
        }
        config = {"provider": {"millrace": provider}, "autoupdate": False, "share": "disabled"}
        (secret.parent / "opencode.json").write_text(json.dumps(config))
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        binary = node / "node_modules/opencode-linux-x64/bin/opencode"
        command = [str(binary), "run", "--model", "millrace/scripted", prompt]
        done = subprocess.run(
            command, cwd=secret.parent, env=environment, timeout=120, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_chat(opencode):
    assert HELLO in opencode("Hello")


def test_tool_turn(opencode):
    """The answer has the word that only the file contains, so the call ran and its result was sent
    back."""
    assert READ in opencode("Read the secret")
