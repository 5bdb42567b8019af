"""Tests conversations with the real model."""

import json
import shutil
from pathlib import Path

import pytest
from server import wait_until

STORY = "Tell me a story about a fox and a lantern."


def greedy(server, messages) -> str:
    body = {"messages": messages, "temperature": 0}
    return json.load(server.post("/v1/chat/completions", body))["choices"][0]["message"]["content"]


def test_an_answer_streams(server, visit):
    visited = visit(server)
    visited.set("temperature", 0)
    visited.one_by_one(8)
    visited.ask(STORY)
    visited.wait_for_end()
    assert visited.answer() == greedy(server, [{"role": "user", "content": STORY}])
    lengths = visited.page.evaluate("lengths")
    assert len(set(lengths)) > 5 and lengths == sorted(lengths), "it came in pieces"
    assert "tokens" in visited.facts() and "per second" in visited.facts() and "first after" in visited.facts()
    assert visited.page.inner_text("#announcer") == "The answer is complete"
    # The next request contains the earlier messages and a system prompt.
    visited.page.fill("#system", "You are kind.")
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    roles = [message["role"] for message in visited.sent[-1][1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("how", ["Stop", "Escape"])
def test_an_answer_can_be_stopped(server, visit, how):
    visited = visit(server)
    visited.begun(STORY)
    kept = visited.answer()
    with server.frozen():
        visited.waits_for_more()
        wait_until(lambda: server.load() == 1, "the server has taken it in")
        if how == "Stop":
            visited.click("Stop")
        else:
            visited.page.keyboard.press("Escape")
        visited.wait_for_end()
        assert "stopped by you" in visited.facts()
    assert visited.answer() == kept
    wait_until(lambda: server.load() == 0, "the server has stopped too")
    # The conversation can be continued later.
    visited.set("max_tokens", 3)
    visited.click("Continue")
    visited.wait_for_end()
    assert visited.sent[-1][1]["continue_final_message"] is True
    assert visited.answer().startswith(kept.rstrip())


def test_answers_are_made_again_and_questions_changed(server, visit):
    visited = visit(server)
    visited.set("temperature", 0)
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    first = visited.answer()
    visited.click("Regenerate")
    visited.wait_for_end()
    assert visited.answer() == first
    assert visited.sent[0] == visited.sent[1]
    visited.click("Edit")
    visited.page.fill(".editing textarea", "What is 11 + 22?")
    visited.page.press(".editing textarea", "Enter")
    visited.wait_for_end()
    assert visited.answer() == greedy(server, [{"role": "user", "content": "What is 11 + 22?"}])
    assert visited.page.locator(".message").count() == 2
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.page.locator(".message").count() == 2, "a conversation outlives a reload"
    visited.click("New chat")
    assert visited.page.locator(".message").count() == 0


def test_probabilities(server, visit):
    visited = visit(server)
    visited.page.check("#probabilities-wanted")
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    body = visited.sent[-1][1]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
    tokens = visited.page.locator(".token")
    assert "".join(tokens.all_text_contents()) == visited.page.text_content(".tokens")
    tokens.nth(2).hover()
    shares = visited.page.locator("#probabilities > div > :last-child").all_inner_texts()
    numbers = [float(share.rstrip(" %").lstrip("< ")) for share in shares]
    assert len(numbers) >= 5 and numbers == sorted(numbers, reverse=True) and 0 < sum(numbers) < 101
    assert visited.page.locator("#probabilities .chosen").count() == 1
    visited.page.mouse.move(0, 0)
    assert not visited.page.is_visible("#probabilities")
    # With the keyboard, the tokens are one Tab stop, and the arrow keys move from token to token.
    tokens.nth(0).focus()
    visited.page.keyboard.press("ArrowRight")
    assert visited.page.evaluate("document.activeElement.dataset.index") == "1"
    assert visited.page.is_visible("#probabilities")
    assert visited.page.get_attribute(".token:focus", "aria-describedby") == "probabilities"
    visited.page.uncheck("#probabilities-wanted")
    assert visited.page.locator(".token").count() == 0 and visited.answer() != ""


def test_a_model_without_a_template_continues_texts(start, visit, tmp_path):
    model = tmp_path / "base"
    shutil.copytree(Path(__file__).parents[2] / "models/demo", model, ignore=shutil.ignore_patterns("grammar", "*.py", "*.jsonl"))
    config = model / "tokenizer_config.json"
    config.write_text(json.dumps({k: v for k, v in json.loads(config.read_text()).items() if k != "chat_template"}))
    visited = visit(start("--model-id", str(model)))
    visited.page.check("#probabilities-wanted")
    visited.set("temperature", 0)
    visited.set("max_tokens", 12)
    visited.ask("Once upon a time")
    visited.wait_for_end()
    path, body = visited.sent[-1]
    assert (path, body["prompt"], body["logprobs"]) == ("/v1/completions", "Once upon a time", 5)
    first = visited.page.text_content(".tokens")
    assert visited.page.locator(".token").count() == 12
    assert "longest length" in visited.facts()
    visited.click("Continue")
    visited.wait_for_end()
    assert visited.sent[-1][1]["prompt"] == "Once upon a time" + first
    assert visited.page.locator(".token").count() == 24
