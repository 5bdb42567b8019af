"""Checks that axe-core finds no problem in any state of the page."""

import pytest
from axe_playwright_python.sync_playwright import Axe

ANSWER = [
    {"reasoning_content": "Let me think about it."},
    {"content": "# Title\n\nText with `code`, a [link](https://example.org/) and $x^2$.\n\n```python\ndef f(x):  # comment\n    return 'text', 1\n```\n\n"
                "$$\n\\frac{a}{b}\n$$\n\n|a|b|\n|-|-|\n|1|2|\n\n> quoted"},
    {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather", "arguments": '{"town": "Oslo"}'}}]},
]


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_state_is_accessible(server, visit, width, colours):
    # The page's policy would not load axe-core.
    visited = visit(server, width, 800, color_scheme=colours, bypass_csp=True)
    page = visited.page

    def check(state):
        results = Axe().run(page).response
        assert len(results["passes"]) > 15, "it has looked"
        found = [(rule["id"], [node["html"][:160] for node in rule["nodes"]][:3]) for rule in results["violations"]]
        assert found == [], state

    def close():
        if width == 360:
            page.keyboard.press("Escape")

    check("empty")
    visited.streams(ANSWER, "tool_calls")
    visited.upload("Attach", ("main.py", b"x = 1"))
    page.locator("#files li").wait_for()
    check("a file")
    visited.ask("A question?")
    visited.wait_for_end()
    visited.until("document.querySelectorAll('#log math').length === 2 && document.querySelector('.syntax-keyword') !== null")
    page.locator("details").evaluate_all("(all) => all.forEach((details) => (details.open = true))")
    check("a conversation with everything")
    visited.click("Regenerate")
    visited.wait_for_end()
    check("two versions")
    visited.click("Edit")
    check("a question being edited")
    page.keyboard.press("Escape")
    for tab in ["Settings", "Request", "Server"]:
        visited.tab(tab)
        check(tab)
    close()
    if not page.is_visible("#history"):
        visited.click("Chats")
    check("conversations")
    page.focus("#conversations .open")
    page.keyboard.press("F2")
    check("a conversation being renamed")
    page.keyboard.press("Escape")
    page.fill("#search", "nothing of that kind")
    check("nothing found")
    page.fill("#search", "")
    page.focus("#conversations .open")
    page.keyboard.press("Delete")
    check("a deleted conversation")
    visited.click("Undo")
    close()
    page.unroute_all()
    visited.click("New chat")
    page.check("#probabilities-wanted")
    visited.set("max_tokens", 8)
    close()
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    page.locator(".token").nth(2).focus()
    check("probabilities")
