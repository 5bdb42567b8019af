"""Tests the status of the server on the page, and the messages when something fails."""

import json
import re
import signal

from server import wait_until

STORY = "Tell me a story about a fox and a lantern."


def live(visited, name) -> float:
    text = visited.page.text_content(f"#live-{name}")
    return 0.0 if text == "–" else float(text)


def test_the_view_moves(server, visit):
    visited = visit(server)
    visited.tab("Server")
    seen = set()

    def all_seen():
        seen.update(name for name in ["running", "speed", "step", "cache"] if live(visited, name) > 0)
        return len(seen) == 4

    with server.busy():
        wait_until(all_seen, f"all of them move, of which {seen} did")
    wait_until(lambda: live(visited, "running") == 0, "it stands still again")
    assert visited.page.get_attribute("#tiles .line", "d").count("L") >= 2
    # One poll transfers a few lines and not all metrics.
    polls = [url for url in visited.asked if "/metrics" in url]
    assert polls and all(len(server.get(url.removeprefix(server.url))) < 1500 for url in polls[:1])


def test_the_page_outlives_the_server(start, visit):
    server = start()
    visited = visit(server)
    visited.expected = ["Failed to load resource", "net::ERR"]
    visited.begun(STORY)
    kept = visited.answer()
    with server.frozen():
        visited.waits_for_more()
        server.end()
    visited.page.wait_for_selector(".message .error")
    assert "connection was lost" in visited.page.inner_text(".error")
    assert visited.answer().startswith(kept) and "incomplete" in visited.facts()
    visited.page.wait_for_selector("#trouble:not([hidden])")
    assert visited.page.inner_text("#status") == "Not reachable"
    visited.click("Try again")
    visited.page.locator("#log").get_by_text("The server cannot be reached").wait_for()
    server.start()
    visited.page.wait_for_selector("#trouble", state="hidden")
    assert visited.page.inner_text("#status") == "Ready"
    visited.click("Try again")
    visited.wait_for_end()
    assert visited.page.locator(".error").count() == 0 and visited.answer() != ""


def test_an_answer_goes_on_when_the_shards_are_lost(start, visit):
    server = start()
    visited = visit(server)
    visited.expected = ["503"]
    visited.begun(STORY)
    kept = visited.answer()
    visited.tab("Server")
    with server.frozen():
        visited.waits_for_more()
        server.kill_shards()
    visited.wait_for_end()
    assert visited.answer().startswith(kept.rstrip()) and len(visited.answer()) > len(kept)
    assert "tokens" in visited.facts() and visited.page.locator(".error").count() == 0
    wait_until(lambda: live(visited, "restarts") == 1, "the loss is shown")


def test_loading_is_shown(server, visit):
    visited = visit(server)
    visited.expected = ["503"]
    body = {"status": "loading", "phase": "Reading weights", "done_bytes": 30, "total_bytes": 120}
    visited.page.route("**/ready", lambda route: route.fulfill(status=503, json=body))
    visited.page.wait_for_selector("#loading:not([hidden])")
    assert visited.page.inner_text("#status") == "Loading 25 %"
    assert visited.page.get_by_label("The model is loading. Reading weights").evaluate("(bar) => bar.value") == 0.25
    visited.page.unroute_all()
    visited.page.wait_for_selector("#loading", state="hidden")


def test_a_key_is_asked_for_and_kept_for_this_tab_only(start, visit):
    visited = visit(start("--api-key", "s3cret-of-mine"))
    visited.expected = ["401"]
    visited.ask("What is 23 + 48?")
    visited.page.wait_for_selector(".error")
    assert "API key" in visited.page.inner_text(".error")
    assert visited.page.evaluate("document.activeElement.id") == "key"
    visited.page.keyboard.type("s3cret-of-mine")
    visited.click("Try again")
    visited.wait_for_end()
    assert visited.page.locator(".error").count() == 0 and visited.answer() != ""
    assert "s3cret" not in visited.page.evaluate("JSON.stringify(localStorage)")
    visited.tab("Request")
    assert "s3cret" not in visited.page.text_content("#view-request")
    assert "$MILLRACE_API_KEY" in visited.page.text_content("#snippet-curl")
    visited.page.reload()
    assert visited.page.input_value("#key") == "s3cret-of-mine"


def test_a_full_server_and_one_that_ends(start, visit):
    server = start("--max-concurrent-requests", "1")
    visited = visit(server)
    visited.expected = ["429"]
    with server.occupied():
        visited.ask("What is 23 + 48?")
        visited.page.wait_for_selector(".error")
        assert re.search(r"takes no more requests\. Try again in \d+ seconds?\.", visited.page.inner_text(".error"))
    wait_until(lambda: server.load() == 0, "there is room again")
    visited.click("Try again")
    visited.wait_for_end()
    assert visited.page.locator(".error").count() == 0

    server = start()
    visited = visit(server)
    visited.expected = ["503", "net::ERR"]
    with server.occupied():
        server.process.send_signal(signal.SIGTERM)
        visited.until("document.getElementById('status').textContent === 'Shutting down'")
        visited.ask("What is 23 + 48?")
        visited.page.locator("#log").get_by_text("The server cannot answer now").wait_for()


def test_an_error_within_a_stream(server, visit):
    visited = visit(server)
    chunk = {"choices": [{"index": 0, "delta": {"content": "Once"}, "finish_reason": None}]}
    error = {"error": {"message": "The model has failed", "http_status_code": 500}}
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in [chunk, error]) + "data: [DONE]\n\n"
    visited.page.route("**/v1/**", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
    visited.ask("Hello")
    visited.wait_for_end()
    assert visited.answer() == "Once\n\nThe model has failed"
