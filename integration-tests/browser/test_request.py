"""Tests the request as generated programs: each sends the page's request and runs unchanged."""

import json
import os
import subprocess
import sys

QUESTION = "It's \"quoted\" & $HOME `x` \\ <b> 漢字 🦊.\nWhat is 23 + 48?"
SCHEMA = '{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": false}'


def test_the_programs_do_what_the_page_has_done(server, visit):
    visited = visit(server)
    numbers = {"temperature": 0, "top_p": 0.9, "top_k": 7, "min_p": 0.01, "max_tokens": 24, "seed": 5, "repetition_penalty": 1.1,
               "frequency_penalty": -0.5, "presence_penalty": 0.25}
    for name, value in numbers.items():
        visited.set(name, value)
    visited.page.fill("#stop", "\\n\\n\nIt's over")
    visited.page.fill("#schema", SCHEMA)
    visited.ask(QUESTION)
    visited.wait_for_end()
    [(path, body)], answer = visited.sent, visited.answer()
    assert {name: body[name] for name in numbers} == numbers
    assert body["stop"] == ["\n\n", "It's over"]
    assert body["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)
    assert body["messages"] == [{"role": "user", "content": QUESTION}]
    assert isinstance(json.loads(answer)["sum"], int)
    visited.tab("Request")
    assert visited.page.inner_text("#route") == f"POST {path}"

    curl = visited.page.text_content("#snippet-curl")
    words = subprocess.check_output(["bash", "-c", 'curl() { printf "%s\\0" "$@"; }\n' + curl]).decode().split("\0")
    assert words[:2] == ["-N", server.url + path]
    assert json.loads(words[words.index("-d") + 1]) == body
    lines = subprocess.check_output(["bash", "-c", curl], stderr=subprocess.DEVNULL).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"]) == answer

    python = visited.page.text_content("#snippet-python")
    printed = subprocess.check_output([sys.executable, "-c", python], env={"PATH": os.environ["PATH"]})
    assert printed.decode() == answer + "\n"

    javascript = visited.page.text_content("#snippet-javascript")
    whole = f"async () => {{ let out; const console = {{ log: (text) => (out = text) }};\n{javascript}\nreturn out; }}"
    assert visited.page.evaluate(whole) == answer
    assert visited.sent == [(path, body)] * 2


def test_what_is_written_is_shown_before_it_is_sent(server, visit):
    visited = visit(server)
    visited.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visited.page.check("#mode-completion")
    visited.page.fill("#draft", "Once upon")
    visited.tab("Request")
    assert visited.page.inner_text("#route") == "POST /v1/completions"
    for name in ["curl", "python", "javascript"]:
        assert "Once upon" in visited.page.text_content(f"#snippet-{name}")
    visited.watch_for("Copied")
    visited.page.locator("#view-request").get_by_role("button", name="Copy").first.click()
    visited.has_shown()
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
    answer = visited.answer()
    visited.page.fill("#set-top_k", "-1")
    visited.click("Regenerate")
    assert visited.answer() == answer and len(visited.sent) == 1, "an answer is given up only for another"
    visited.page.fill("#set-top_k", "9")
    visited.page.reload()
    assert visited.page.input_value("#set-top_k") == "9", "parameters outlive a reload"
    visited.click("Reset parameters")
    assert visited.page.input_value("#set-top_k") == ""
