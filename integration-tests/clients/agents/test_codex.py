"""Tests Codex, unchanged, on a scripted model: a chat, turns with its tools, and the events that it
reads."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import scripted

HELLO = "Hello! I am the scripted model behind Codex, and this is all that I say."
SECRET = "The word of the day is heliotrope."
DONE = "The command has printed the word heliotrope."
PATCHED = "The patch was applied, so we are finished here."
CLOSED = "There is no such agent, says the tool."
FORMED = '{"word": "heliotrope"}'
PATCH = "*** Begin Patch\n*** Add File: added.txt\n+a \"line\" with \\ and ü\n*** End Patch\n"

RULES = [
    {"when": "last == 'tool' and 'heliotrope' in result", "say": DONE},
    {"when": "last == 'tool' and 'A added.txt' in result", "say": PATCHED},
    {"when": "last == 'tool' and 'invalid agent id' in result", "say": CLOSED},
    {"when": "tools and 'secret' in text", "say": "I look at it.\n" + scripted.call("exec_command", {"cmd": "cat secret.txt"})},
    {"when": "tools and 'patch' in text", "say": scripted.call("apply_patch", {"input": PATCH})},
    {"when": "tools and 'agent' in text", "say": scripted.call("close_agent", {"target": "nobody"})},
    {"when": "'form' in text", "say": FORMED},
    {"when": "tools", "say": HELLO},
]


# Codex offers a tool that takes a text to models of this name.
KNOWN = "gpt-5.5"


@pytest.fixture(scope="module")
def codex_server(serve):
    return serve(RULES)


@pytest.fixture
def codex(codex_server, node, tmp_path):
    """Runs `codex exec` in its own folder. Returns the last message, the events, and the folder."""

    def run(prompt, *flags, model):
        home, work = tmp_path / "home", tmp_path / "work"
        home.mkdir()
        work.mkdir()
        (work / "secret.txt").write_text(SECRET)
        (home / "config.toml").write_text(f"""
model = {json.dumps(model)}
model_provider = "millrace"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.millrace]
name = "Millrace"
base_url = "{codex_server.url}/v1"
wire_api = "responses"
env_key = "MILLRACE_KEY"
request_max_retries = 0
stream_max_retries = 0
""")
        script = Path(node) / "node_modules/@openai/codex/bin/codex.js"
        last = tmp_path / "last"
        command = ["node", str(script), "exec", "--skip-git-repo-check", "--json", "--output-last-message", str(last)]
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "MILLRACE_KEY": codex_server.key,
        }
        done = subprocess.run(
            [*command, *flags, prompt], cwd=work, env=environment, timeout=120, capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert not [event for event in events if event["type"] in ("error", "turn.failed")], events
        return last.read_text(), events, work

    return run


def served(server):
    """Returns the model's name from the server."""
    import urllib.request

    request = urllib.request.Request(f"{server.url}/v1/models?client_version=0.169.0")
    request.add_header("authorization", f"Bearer {server.key}")
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["data"][0]["id"]


def test_chat(codex, codex_server):
    last, events, _ = codex("Say hello", model=served(codex_server))
    assert last.strip() == HELLO
    [turn] = [event for event in events if event["type"] == "turn.completed"]
    assert turn["usage"]["input_tokens"] > 1000 and turn["usage"]["output_tokens"] > 5


def test_tool_turn(codex, codex_server):
    """The last answer needs the word that only the file contains, so the command ran and its output
    was sent back."""
    last, events, _ = codex("Print the secret", model=served(codex_server))
    assert last.strip() == DONE
    commands = [event["item"] for event in events if event.get("item", {}).get("type") == "command_execution"]
    assert SECRET in commands[-1]["aggregated_output"]


def test_patch(codex):
    """Codex applies the patch that the model passes to a tool with a text argument instead of
    JSON."""
    last, _, work = codex("Make a patch", model=KNOWN)
    assert last.strip() == PATCHED
    assert (work / "added.txt").read_text() == 'a "line" with \\ and ü\n'


def test_effort_and_summary(codex, codex_server):
    flags = ["-c", "model_reasoning_effort=high", "-c", "model_reasoning_summary=detailed", "-c", "model_verbosity=low"]
    last, _, _ = codex("Say hello", *flags, model=served(codex_server))
    assert last.strip() == HELLO


def test_namespace(codex, codex_server):
    """Codex finds a tool in a namespace only if the call names the namespace."""
    last, _, _ = codex("Close the agent", model=served(codex_server))
    assert last.strip() == CLOSED


def test_output_schema(codex, codex_server, tmp_path):
    schema = tmp_path / "schema.json"
    properties = {"word": {"type": "string"}}
    schema.write_text(json.dumps(
        {"type": "object", "properties": properties, "required": ["word"], "additionalProperties": False}
    ))
    last, _, _ = codex("Give it form", "--output-schema", str(schema), model=served(codex_server))
    assert json.loads(last) == {"word": "heliotrope"}
