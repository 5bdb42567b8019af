"""Tests the facts about the model, the use of its context, and the control of its thinking."""

import json
import subprocess
import sys
from pathlib import Path

STORY = "Tell me a story about a fox and a lantern."


def usage(server, sent) -> dict:
    """Returns the tokens of the same request without streaming."""
    body = {name: value for name, value in sent[1].items() if not name.startswith("stream")}
    return json.load(server.post(sent[0], body))["usage"]


def test_the_facts_of_the_model(server, visit):
    visited = visit(server)
    info = json.loads(server.get("/info"))
    size = f"{info['max_total_tokens']:,}"
    visited.until("document.getElementById('model-facts').textContent !== ''")
    assert visited.page.inner_text("#model") == info["model_id"]
    assert visited.page.inner_text("#model-facts") == f"{size} tokens · {info['model_dtype']} · not quantized"
    visited.tab("Server")
    rows = dict(zip(visited.page.locator("#facts dt").all_inner_texts(), visited.page.locator("#facts dd").all_inner_texts(), strict=True))
    assert rows["Model"] == info["model_id"] and rows["Context"] == f"{size} tokens"
    assert (rows["Data type"], rows["Quantization"], rows["Device"]) == (info["model_dtype"], "none", info["model_device_type"])
    assert rows["Thinking"] == "none" and "Revision" not in rows, "the demo model has neither"


def test_a_quantized_model_says_so(start, visit):
    visited = visit(start("--quantize", "int8"))
    visited.until("document.getElementById('model-facts').textContent.endsWith('int8')")


def test_empty_fields_show_what_the_server_takes_for_them(server, visit):
    visited = visit(server)
    recommended = json.loads(server.get("/info"))["sampling_defaults"]
    shown = lambda name: visited.page.get_attribute(f"#set-{name}", "placeholder")
    assert recommended["temperature"] == 0.2, "the demo model recommends it"
    visited.until("document.getElementById('set-temperature').placeholder === '0.2'")
    assert visited.page.input_value("[data-for=temperature]") == "0.2"
    assert (shown("top_p"), shown("top_k")) == ("1", "all"), "it recommends no others"


def test_the_use_of_the_context(server, visit):
    visited = visit(server)
    size = f"{json.loads(server.get('/info'))['max_total_tokens']:,}"
    context = lambda: visited.page.inner_text("#context-text")
    visited.until("document.getElementById('context-text').textContent !== ''")
    assert context() == f"{size} tokens of context"
    visited.set("temperature", 0)
    visited.set("max_tokens", 20)
    for question in [STORY, "What is 23 + 48?"]:
        visited.ask(question)
        visited.wait_for_end()
        counted = usage(server, visited.sent[-1])
        used = f"{counted['prompt_tokens'] + counted['completion_tokens']:,} of {size} tokens of context used"
        assert context() == used
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    visited.until(f"document.getElementById('context-text').textContent === {json.dumps(used)}")
    # The count of the last answer does not hold for other messages.
    visited.page.get_by_role("button", name="Delete answer").first.click()
    assert context() == f"{size} tokens of context, use not known yet"
    visited.click("Undo")
    assert context() == used
    visited.click("New chat")
    assert context() == f"{size} tokens of context"


def test_a_model_that_does_not_think(server, visit):
    visited = visit(server)
    visited.tab("Settings")
    visited.page.get_by_text("The chat template of this model has no thinking.").wait_for()
    assert visited.page.get_by_label("Off", exact=True).is_disabled()
    # A choice from another server is not sent.
    visited.page.evaluate("document.getElementById('thinking-off').checked = true")
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    assert "reasoning_effort" not in visited.sent[-1][1]


# The mark in the condition is what the server recognizes a template that thinks by.
RULES = [
    {"when": "enable_thinking is defined and not enable_thinking and last != '</think>'", "say": "No thoughts."},
    {"when": "true", "say": "<think>\nOne two three four five six seven eight nine ten.\n</think>\n\nThought."},
]


def test_thinking_is_controlled(start, visit, tmp_path):
    rules, model = tmp_path / "rules.json", tmp_path / "model"
    rules.write_text(json.dumps(RULES))
    subprocess.run([sys.executable, Path(__file__).parents[1] / "clients/scripted.py", model, rules], check=True)
    server = start("--model-id", str(model))
    visited = visit(server)
    told = json.loads(server.get("/info"))["thinking"]
    assert told == {"format": "think", "switch": True, "budget": True, "default_budget": None}
    visited.tab("Settings")
    visited.page.wait_for_selector("#thinking:not([disabled])")
    assert not visited.page.is_visible("#thinking-reason")

    def answer(choice):
        visited.page.get_by_label(choice, exact=True).check()
        visited.click("New chat") if visited.messages() else None
        visited.ask("Think!")
        visited.wait_for_end()
        assert visited.page.locator(".error").count() == 0
        thoughts = visited.page.locator(".thinking > .blocks")
        body = visited.sent[-1][1]
        fields = {name: body[name] for name in ["reasoning_effort", "thinking_token_budget", "chat_template_kwargs"] if name in body}
        return fields, thoughts.text_content() if thoughts.count() else None

    whole = "One two three four five six seven eight nine ten."
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    assert answer("Default") == ({}, whole)
    assert answer("On") == ({**thinks, "thinking_token_budget": -1}, whole)
    assert answer("Off") == ({"reasoning_effort": "none"}, None)
    # A budget without a number is not sent.
    visited.page.get_by_label("Budget", exact=True).check()
    visited.ask("Think!")
    assert visited.page.evaluate("document.activeElement.id") == "set-thinking_budget" and len(visited.sent) == 3
    visited.page.get_by_label("Tokens to think").fill("3")
    # The words after a mark that the model did not choose were not written down.
    visited.set("max_tokens", 40)
    fields, thoughts = answer("Budget")
    assert fields == {**thinks, "thinking_token_budget": 3}
    assert whole.startswith(thoughts.strip()) and len(thoughts) < len(whole)
    visited.tab("Request")
    assert '"thinking_token_budget": 3' in visited.page.text_content("#snippet-python")
    # The choice outlives a reload.
    visited.page.reload()
    visited.tab("Settings")
    visited.page.wait_for_selector("#thinking:not([disabled])")
    assert visited.page.get_by_label("Budget", exact=True).is_checked()
    assert visited.page.get_by_label("Tokens to think").input_value() == "3"
    visited.click("Reset parameters")
    assert visited.page.get_by_label("Default", exact=True).is_checked()
    assert not visited.page.is_visible("#budget-row")
    # In completion mode there is no template that could think.
    visited.page.get_by_label("Completion", exact=True).check()
    assert not visited.page.is_visible("#thinking")


def test_choices_that_a_model_does_not_have(server, visit):
    visited = visit(server)
    info = json.loads(server.get("/info"))
    info["thinking"] = {"format": None, "switch": False, "budget": False, "default_budget": None}
    visited.page.route("**/info", lambda route: route.fulfill(json=info))
    visited.page.reload()
    visited.tab("Settings")
    visited.page.wait_for_selector("#thinking:not([disabled])")
    reason = visited.page.inner_text("#thinking-reason")
    assert "cannot be kept from thinking" in reason and "cannot be limited" in reason
    disabled = [visited.page.get_by_label(name, exact=True).is_disabled() for name in ["Default", "On", "Off", "Budget"]]
    assert disabled == [False, False, True, True]
