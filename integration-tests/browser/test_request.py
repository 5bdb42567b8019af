"""The request as programs: each must ask for what the page has asked for, and run as it stands."""

import json
import os
import subprocess
import sys

import pytest

QUESTION = "It's \"quoted\" & $HOME `x` \\ <b> 漢字 🦊.\nWhat is 23 + 48?"
SCHEMA = '{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": false}'


@pytest.fixture
def asked(server, visit):
    """A page that has had an answer, with most of the parameters set."""
    visited = visit(server)
    numbers = {"temperature": 0, "top_p": 0.9, "top_k": 7, "min_p": 0.01, "max_tokens": 24, "seed": 5, "repetition_penalty": 1.1,
               "frequency_penalty": -0.5, "presence_penalty": 0.25}
    for name, value in numbers.items():
        visited.set(name, value)
    visited.page.fill("#stop", "\\n\\n\nIt's over")
    visited.page.fill("#schema", SCHEMA)
    visited.ask(QUESTION)
    visited.wait_for_end()
    path, body = visited.sent[-1]
    assert {name: body[name] for name in numbers} == numbers
    assert body["stop"] == ["\n\n", "It's over"]
    assert body["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)
    assert body["messages"] == [{"role": "user", "content": QUESTION}]
    assert isinstance(json.loads(visited.answer())["sum"], int)
    visited.tab("Request")
    assert visited.page.inner_text("#route") == f"POST {path}"
    return visited


def test_curl(asked):
    command = asked.page.text_content("#snippet-curl")
    shown = subprocess.check_output(["bash", "-c", 'curl() { printf "%s\\0" "$@"; }\n' + command]).decode().split("\0")
    assert shown[:2] == ["-N", asked.server.url + asked.sent[-1][0]]
    assert json.loads(shown[shown.index("-d") + 1]) == asked.sent[-1][1]
    lines = subprocess.check_output(["bash", "-c", command], stderr=subprocess.DEVNULL).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"]) == asked.answer()


def test_python(asked):
    program = asked.page.text_content("#snippet-python")
    printed = subprocess.check_output([sys.executable, "-c", program], env={"PATH": os.environ["PATH"]})
    assert printed.decode() == asked.answer() + "\n"


def test_javascript(asked):
    program = asked.page.text_content("#snippet-javascript")
    printed = asked.page.evaluate("async () => { let out; const console = { log: (text) => (out = text) };\n" + program + "\nreturn out; }")
    assert printed == asked.answer()
    assert asked.sent[-1] == asked.sent[-2]


def test_what_is_written_is_shown_before_it_is_sent(server, visit):
    visited = visit(server)
    visited.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visited.page.check("#mode-completion")
    visited.page.fill("#draft", "Once upon")
    visited.tab("Request")
    assert visited.page.inner_text("#route") == "POST /v1/completions"
    for name in ["curl", "python", "javascript"]:
        assert "Once upon" in visited.page.text_content(f"#snippet-{name}")
    visited.page.locator("#view-request").get_by_role("button", name="Copy").first.click()
    visited.page.get_by_role("button", name="Copied").wait_for()
    assert visited.page.evaluate("navigator.clipboard.readText()") == visited.page.text_content("#snippet-curl")
    assert "MILLRACE_API_KEY" not in visited.page.text_content("#view-request")


def test_wrong_parameters_are_not_sent(server, visit):
    visited = visit(server)
    for field, wrong in [("#set-temperature", "3"), ("#set-top_k", "1.5"), ("#stop", "a\nb\nc\nd\ne"), ("#schema", "[1")]:
        visited.page.fill(field, wrong)
        visited.ask("Hello")
        assert visited.page.evaluate("document.activeElement.matches(':invalid')"), field
        assert visited.page.input_value("#draft") == "Hello" and visited.sent == []
        visited.page.fill(field, "")
    visited.page.press("#draft", "Enter")
    visited.wait_for_end()
    visited.page.fill("#set-top_k", "9")
    visited.page.reload()
    assert visited.page.input_value("#set-top_k") == "9", "parameters outlive a reload"
    visited.click("Reset parameters")
    assert visited.page.input_value("#set-top_k") == ""
