"""Tests Claude Code, unchanged, on a scripted model: chats, streams, and tools that the model
calls."""

import json
import os
import shutil
import subprocess
import urllib.request
from typing import NamedTuple

import pytest
from scripted import call

HELLO = "Hello! I am the scripted model behind Claude Code."
TOLD = "The note says that the word is quartz, as the tool has told."
LOST = "No tool has told what the note says, which is a pity."
REMEMBERED = "Before, I was asked about the note, and I do remember it."
NOTE = "the word is quartz\n"
# The limit of prompt and answer together. It is smaller than the prompt plus the tokens that Claude
# Code requests, which are at least 32000.
TIGHT = "50000"


class Agent:
    """Runs Claude Code in its own folder against one server."""

    def __init__(self, server, node, folder):
        self.server = server
        self.package = node / "node_modules" / "@anthropic-ai" / "claude-code"
        self.home = folder / "home"
        self.work = folder / "work"
        self.home.mkdir()
        self.work.mkdir()

    def environment(self, key):
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "ANTHROPIC_BASE_URL": self.server.url,
            "ANTHROPIC_API_KEY": key,
            "ANTHROPIC_MODEL": self.model(),
            # As root, where the tests may run, Claude Code refuses to run tools without asking.
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Without this limit it would repeat failures for minutes.
            "CLAUDE_CODE_MAX_RETRIES": "0",
        }

    def model(self):
        """Returns the served name, in the way of Anthropic's clients."""
        request = urllib.request.Request(
            f"{self.server.url}/v1/models", headers={"anthropic-version": "2023-06-01", "x-api-key": self.server.key}
        )
        with urllib.request.urlopen(request) as response:
            models = json.load(response)
        assert models["data"][0]["type"] == "model" and models["has_more"] is False
        return models["first_id"]

    def run(self, prompt, *arguments, key=None):
        """Answers a prompt and returns the printed events."""
        command = [shutil.which("node"), str(self.package / "cli-wrapper.cjs"), "-p", prompt]
        command += ["--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", *arguments]
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment(key or self.server.key),
            timeout=200,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert events and events[-1]["type"] == "result", done.stdout + done.stderr + self.server.log.read_text()
        return Run(done.returncode, events)


class Run(NamedTuple):
    """The output of Claude Code."""

    status: int
    events: list

    @property
    def last(self):
        return self.events[-1]

    def said(self):
        """Returns the final text, if the run succeeded."""
        assert self.status == 0 and self.last["is_error"] is False, self.last
        return self.last["result"]

    def blocks(self, role, kind):
        """Returns the blocks of this kind in the messages of this role."""
        messages = [event["message"] for event in self.events if event["type"] == role]
        return [block for message in messages for block in message["content"] if block["type"] == kind]


@pytest.fixture(scope="module")
def scripted_server(serve, tmp_path_factory):
    note = tmp_path_factory.mktemp("note") / "note.txt"
    note.write_text(NOTE)
    read = call("Read", {"file_path": str(note)})
    shell = call("Bash", {"command": f"cat {note}", "description": "Prints the note"})
    missing = call("Read", {"file_path": str(note) + ".gone"})
    rules = [
        {"when": "results and 'quartz' in result", "say": TOLD},
        {"when": "results", "say": LOST},
        {"when": "'Remember' in text and 'quartz' in (messages | string)", "say": REMEMBERED},
        {"when": "tools and 'Read' in text", "say": read},
        {"when": "tools and 'shell' in text", "say": "I ask the shell for it. " + shell},
        {"when": "tools and 'missing' in text", "say": missing},
        {"when": "true", "say": HELLO},
    ]
    return serve(rules, "--max-total-tokens", TIGHT)


@pytest.fixture
def agent(scripted_server, node, tmp_path):
    return Agent(scripted_server, node, tmp_path)


def test_chat(agent):
    run = agent.run("Say hello.")
    assert run.said() == HELLO
    assert run.last["num_turns"] == 1 and run.last["stop_reason"] == "end_turn"
    assert run.last["usage"]["output_tokens"] > 0


def test_stream(agent):
    run = agent.run("Say hello.", "--include-partial-messages")
    events = [event["event"] for event in run.events if event["type"] == "stream_event"]
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    assert text == run.said() == HELLO
    kinds = [event["type"] for event in events if event["type"] not in ("content_block_delta", "ping")]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def test_read(agent):
    run = agent.run("Read the note.", "--include-partial-messages")
    assert run.said() == TOLD and run.last["num_turns"] == 2
    [use] = run.blocks("assistant", "tool_use")
    [result] = run.blocks("user", "tool_result")
    assert use["name"] == "Read" and result["tool_use_id"] == use["id"] and NOTE.strip() in result["content"]
    # The arguments arrived in parts, which together are the arguments.
    deltas = [event["event"].get("delta", {}) for event in run.events if event["type"] == "stream_event"]
    parts = [delta["partial_json"] for delta in deltas if delta.get("type") == "input_json_delta"]
    assert json.loads("".join(parts)) == use["input"]
    # The second prompt has the prefix of the first one, and only its end was computed.
    assert run.last["usage"]["cache_read_input_tokens"] > 1000


def test_text_before_a_call(agent):
    run = agent.run("Use the shell.")
    assert run.said() == TOLD
    assert run.blocks("assistant", "text")[0]["text"].strip() == "I ask the shell for it."
    [use] = run.blocks("assistant", "tool_use")
    [result] = run.blocks("user", "tool_result")
    assert use["name"] == "Bash" and result["is_error"] is False and result["content"] == NOTE.strip()


def test_tool_that_fails(agent):
    run = agent.run("Look at the missing one.")
    assert run.said() == LOST
    [result] = run.blocks("user", "tool_result")
    assert result["is_error"] is True


def test_later_turns(agent):
    agent.run("Read the note.")
    run = agent.run("Remember what I have asked.", "--continue")
    assert run.said() == REMEMBERED


@pytest.mark.parametrize("thinking", ["0", "4000"])
def test_thinking(agent, monkeypatch, thinking):
    environment = agent.environment
    monkeypatch.setattr(agent, "environment", lambda key: {**environment(key), "MAX_THINKING_TOKENS": thinking})
    assert agent.run("Say hello.").said() == HELLO


def test_wrong_key(agent):
    run = agent.run("Say hello.", key="wrong")
    assert run.last["is_error"] is True and run.last["api_error_status"] == 401
