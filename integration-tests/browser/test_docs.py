"""Tests the page about the API at `/docs/`: its look, its search, and the requests that it sends."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from test_look import CONTRAST, picture


def docs(visit, server, width=1440, **options):
    visited = visit(server, width, 800, path="/docs/", **options)
    visited.page.wait_for_selector("#find:not([hidden])")
    return visited


def opened(visited, name: str):
    """Opens a route and returns its element."""
    route = visited.page.locator(f"#{name}")
    route.locator("summary").first.click()
    route.locator(".try").wait_for()
    return route


def sent(route) -> str:
    """Presses Send and returns the status when the response is complete."""
    route.get_by_role("button", name="Send", exact=True).click()
    status = route.locator(".status").get_by_text("complete after")
    status.wait_for()
    return status.inner_text()


@pytest.mark.parametrize("width", [360, 768, 1100, 1400, 1900])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_width_and_colour(server, visit, request, width, colours):
    visited = docs(visit, server, width, color_scheme=colours, has_touch=width == 360)
    page = visited.page

    def check(name):
        picture(request, visited, f"docs-{width}-{colours}-{name}")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, name
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 10
        assert [c for c in contrasts if c["ratio"] < c["needed"]] == [], name

    check("routes")
    route = opened(visited, "post-v1-chat-completions")
    check("route")
    assert sent(route).startswith("200 OK")
    route.locator(".try").scroll_into_view_if_needed()
    check("response")
    page.fill("#search", "temperature")
    check("search")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_state_is_accessible(server, visit, colours):
    visited = docs(visit, server, color_scheme=colours, bypass_csp=True)

    def check(state):
        found = [(rule["id"], [node["html"][:160] for node in rule["nodes"]][:3]) for rule in Axe().run(visited.page).response["violations"]]
        assert found == [], state

    check("routes")
    route = opened(visited, "get-v1-models-id")
    route.get_by_label("id", exact=True).fill("demo")
    assert sent(route).startswith("200")
    opened(visited, "post-generate")
    check("routes with forms")
    visited.page.fill("#search", "zebra crossing")
    assert visited.page.is_visible("#nothing")
    check("nothing found")


def test_the_theme_is_the_one_of_the_chat(server, visit):
    visited = docs(visit, server, color_scheme="light")
    back = lambda: visited.page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = back()
    visited.page.get_by_role("button", name="Switch to dark colours").click()
    dark = back()
    assert dark != light
    visited.page.get_by_role("link", name="Chat", exact=True).click()
    visited.page.wait_for_selector("#draft")
    assert back() == dark, "both pages have the same colours"


def test_routes_and_fields_are_found(server, visit):
    visited = docs(visit, server)
    page = visited.page
    shown = lambda: page.locator("main details.route:visible").evaluate_all("(all) => all.map((route) => route.id)")
    everything = shown()
    described = json.loads(server.get("/api-doc/openapi.json"))
    operations = [(path, method) for path, item in described["paths"].items() for method in item]
    assert len(everything) == len(operations) + len(described["components"]["schemas"])
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("messages count")
    assert "post-v1-messages-count_tokens" in shown() and "post-generate" not in shown()
    assert page.inner_text("#found") == f"{len(shown())} of {len(everything)} routes and types"
    links = page.locator("#contents li a:visible").all_inner_texts()
    assert links and all("tokens" in link or "/v1/" in link for link in links)
    # A field that decides is named beside the route, and marked in its table.
    page.fill("#search", "max_completion_tokens")
    assert "post-v1-chat-completions" in shown() and "get-health" not in shown()
    route = page.locator("#post-v1-chat-completions")
    assert "max_completion_tokens" in route.locator(".hits").inner_text()
    route.locator("summary").first.click()
    assert "max_completion_tokens" in route.locator("tr.hit").all_inner_texts()[0]
    page.focus("#search")
    page.keyboard.press("Escape")
    assert page.input_value("#search") == "" and shown() == everything and page.locator(".hit").count() == 0


def test_links_open_what_they_name(server, visit):
    visited = docs(visit, server)
    page = visited.page
    page.locator("#contents").get_by_role("link", name="POST /generate", exact=True).click()
    assert page.locator("#post-generate").evaluate("(route) => route.open")
    page.locator("#post-generate .fields a").first.click()
    name = page.evaluate("location.hash.slice(1)")
    assert name.startswith("type-") and page.locator(f"#{name}").evaluate("(type) => type.open")
    # The page has no link to a part that it does not have.
    missing = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((link) => link.hash.slice(1)).filter((name) => !document.getElementById(name))")
    assert missing == []
    other = visit(server, path="/docs/#get-info")
    other.page.locator("#get-info .try").wait_for()


def test_requests_are_sent_and_streamed(server, visit):
    visited = docs(visit, server)
    route = opened(visited, "post-v1-chat-completions")
    body = route.get_by_label("Body", exact=True)
    example = json.loads(body.input_value())
    assert example["stream"] is True
    assert sent(route).startswith("200 OK")
    assert visited.sent == [("/v1/chat/completions", example)]
    events = route.locator(".response figure pre").text_content().split("\n\n")
    assert events[0].startswith("data: {") and events[-2] == "data: [DONE]"
    route.locator(".headers summary").click()
    assert "content-type: text/event-stream" in route.locator(".headers pre").inner_text()
    # JSON is indented, and an error is an answer too.
    body.fill('{"messages": [{"role": "user", "content": "What is 23 + 48?"}], "max_tokens": 2}')
    body.press("Control+Enter")
    visited.until("document.querySelector('#post-v1-chat-completions .response figure pre').textContent.includes('\"max_tokens\"') || document.querySelector('#post-v1-chat-completions .response figure pre').textContent.includes('  \"choices\"')")
    visited.expected = ["400"]
    body.fill('{"messages": 7}')
    assert sent(route).startswith("400 Bad Request")
    assert json.loads(route.locator(".response figure pre").text_content())["error"]["message"]
    # What is not JSON is not sent.
    count = len(visited.sent)
    body.fill("{")
    route.get_by_role("button", name="Send", exact=True).click()
    assert "The body is not JSON" in route.locator(".trouble").inner_text() and len(visited.sent) == count
    assert visited.page.evaluate("document.activeElement.localName") == "textarea"


def test_parameters_become_part_of_the_address(server, visit):
    visited = docs(visit, server)
    route = opened(visited, "get-v1-models-id")
    route.get_by_role("button", name="Send", exact=True).click()
    assert visited.page.evaluate("document.activeElement.matches(':invalid')"), "the path needs it"
    visited.expected = ["404"]
    route.get_by_label("id", exact=True).fill("some/model name")
    assert sent(route).startswith("404")
    assert visited.asked[-1] == f"{server.url}/v1/models/some/model%20name"
    route.get_by_label("id", exact=True).fill("demo")
    assert sent(route).startswith("200") and json.loads(route.locator(".response figure pre").text_content())["id"] == "demo"


def test_a_request_can_be_stopped(server, visit):
    visited = docs(visit, server)
    route = opened(visited, "post-generate")
    stop = route.get_by_role("button", name="Stop", exact=True)
    assert stop.is_disabled()
    with server.frozen():
        route.get_by_role("button", name="Send", exact=True).click()
        stop.click()
        route.locator(".status").get_by_text("stopped").wait_for()
    assert stop.is_disabled()


def test_the_key_is_shared_with_the_chat(start, visit):
    server = start("--api-key", "s3cret-of-mine")
    visited = docs(visit, server)
    visited.expected = ["401"]
    route = opened(visited, "post-tokenize")
    assert sent(route).startswith("401")
    visited.page.get_by_label("API key").fill("s3cret-of-mine")
    assert sent(route).startswith("200 OK")
    visited.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    route.get_by_role("button", name="Copy as curl").click()
    route.get_by_role("button", name="Copied").wait_for()
    copied = visited.page.evaluate("navigator.clipboard.readText()")
    assert f"'{server.url}/tokenize'" in copied and "$MILLRACE_API_KEY" in copied and "s3cret" not in copied
    visited.page.get_by_role("link", name="Chat", exact=True).click()
    visited.until("document.getElementById('key')?.value === 's3cret-of-mine'")


def test_the_page_is_complete_without_scripts(server, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/docs/")
    assert not page.is_visible("#search"), "nothing is offered that would not work"
    page.locator("#post-generate summary").click()
    assert page.locator("#post-generate .fields").is_visible() and page.locator("#post-generate .example").is_visible()
    context.close()
