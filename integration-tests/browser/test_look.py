"""Tests the layout in all widths, colors, and with the keyboard alone."""

import os

import pytest
from server import wait_until

ANSWER = """## A heading

Some *emphasis*, **strong words**, `code`, and a [link](https://example.org/a).

1. First
2. Second, with a `thing`
   - inner one
   - inner two

- [x] A task that is done
- [ ] A task that is not

> A quotation that goes on for a while, so that it takes more than one line on a telephone.

```python
def a_long_line_of_code(which, does, not_fit, on, a, telephone):  # and needs a scroll bar of its own
    return 1
```

| Column | Another column | Yet another column |
|---|---|---|
| some | words in a cell | averyveryveryveryverylongwordwithoutanyplacetobreakit |

AndAWordThatIsSoLongThatItWouldWidenThePageIfItWereNotBrokenSomewhereInItsMiddle."""

# The contrast of a text and its background according to WCAG 2.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest(".off-screen, :disabled")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element);
    const [back, front] = [light(paint(behind)), light(paint([...behind, style.color]))];
    const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    found.push({ text: text.slice(0, 40), ratio, needed });
  }
  return found;
}"""

PLACES = ["Settings", "Request", "Server"]


def picture(request, visited, name):
    folder = request.config.getoption("--screenshots")
    if folder:
        visited.page.wait_for_timeout(250)
        visited.page.screenshot(path=os.path.join(folder, f"{name}.png"))


def talk(visited):
    visited.page.fill("#draft", "A question\nof two lines?")
    visited.page.press("#draft", "Enter")
    visited.wait_for_end()


@pytest.mark.parametrize("width", [360, 768, 1100, 1400, 1900])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_width_and_colour(server, visit, request, width, colours):
    visited = visit(server, width, 780, color_scheme=colours, has_touch=width == 360)
    page = visited.page

    def check(name):
        picture(request, visited, f"{width}-{colours}-{name}")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, name
        # Content that is wider than the window can be scrolled in place.
        wide = page.evaluate(
            """() => [...document.querySelectorAll("main *, aside *, header *")].filter((element) => element.checkVisibility()
                 && element.getBoundingClientRect().right > innerWidth + 1 && !element.closest("pre, .wide, .off-screen"))
               .map((element) => element.outerHTML.slice(0, 80))"""
        )
        assert wide == [], name
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 10
        assert [c for c in contrasts if c["ratio"] < c["needed"]] == [], name

    check("empty")
    visited.tab("Settings")
    visited.page.fill("#system", "You are a kind teller of tales.")
    if page.is_visible("#close-panel"):
        visited.click("Close")
    visited.says(*[ANSWER[i : i + 40] for i in range(0, len(ANSWER), 40)])
    talk(visited)
    check("answer")
    page.unroute_all()
    visited.click("New chat")
    page.check("#probabilities-wanted")
    visited.ask("Tell me a story about a fox and a lantern.")
    visited.wait_for_end()
    page.locator(".token").nth(8).focus()
    check("probabilities")
    for place in PLACES:
        visited.tab(place)
        check(place.lower())
    if width < 960:
        page.keyboard.press("Escape")
    if not page.is_visible("#history"):
        visited.click("Chats")
    check("chats")


def sides(visited) -> list[str]:
    """Returns the sides that are shown, which the buttons also tell."""
    shown, told = visited.page.evaluate(
        """() => ["history", "panel"].reduce(([shown, told], name) => [
             document.getElementById(name).checkVisibility() ? [...shown, name] : shown,
             document.getElementById(`open-${name}`).ariaExpanded === "true" ? [...told, name] : told], [[], []])"""
    )
    assert shown == told
    return shown


@pytest.mark.parametrize("width, first", [(360, []), (768, []), (1100, ["panel"]), (1399, ["panel"]), (1400, ["history", "panel"])])
def test_one_side_at_most_is_open_below_1400_pixels(server, visit, width, first):
    visited = visit(server, width, 780)
    page, keyboard = visited.page, visited.page.keyboard
    assert sides(visited) == first
    focused = {"panel": "tab-settings", "history": "search"}
    for name in ["history", "panel", "history"]:
        if name not in sides(visited):
            # The buttons are pressed as a script presses them, since an open side may cover them.
            page.dispatch_event(f"#open-{name}", "click")
            assert page.evaluate("document.activeElement.id") == focused[name]
        assert sides(visited) == (first if width >= 1400 else [name])
    page.focus("#search")
    keyboard.type("x")
    keyboard.press("Escape")
    assert "history" in sides(visited) and page.input_value("#search") == "", "the search is emptied first"
    keyboard.press("Escape")
    assert sides(visited) == (["panel"] if width >= 1400 else [])
    assert page.evaluate("document.activeElement.id") == "open-history"


def test_the_sides_follow_the_width_of_the_window(server, visit):
    visited = visit(server, 1500, 780)
    page = visited.page

    def resized(width, expected):
        page.set_viewport_size({"width": width, "height": 780})
        wait_until(lambda: sides(visited) == expected, f"{expected} at {width}")

    page.click("#open-history")
    page.click("#open-history")
    resized(1300, ["history"])
    resized(800, [])
    resized(1500, ["history", "panel"])
    page.click("#open-panel")
    page.reload()
    wait_until(lambda: sides(visited) == ["history"], "the choice outlives a reload")
    resized(1300, ["history"])


def test_the_colours_can_be_chosen(server, visit):
    visited = visit(server, color_scheme="light")
    back = lambda: visited.page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = back()
    visited.page.get_by_role("button", name="Switch to dark colours").click()
    dark = back()
    assert dark != light
    visited.page.reload()
    assert back() == dark, "the choice outlives a reload"
    visited.page.emulate_media(color_scheme="dark")
    visited.page.get_by_role("button", name="Switch to light colours").click()
    assert back() == light


def test_keyboard_alone(server, visit):
    visited = visit(server, 1280, 800)
    page, keyboard = visited.page, visited.page.keyboard
    name = "document.activeElement.id || document.activeElement.textContent.trim()"
    assert page.evaluate(name) == "draft", "one can write at once"
    keyboard.type("What is 23 + 48?")
    keyboard.press("Shift+Enter")
    keyboard.type("Tell me.")
    assert visited.sent == []
    keyboard.press("Enter")
    visited.wait_for_end()
    assert visited.sent[0][1]["messages"][0]["content"] == "What is 23 + 48?\nTell me."
    assert page.evaluate(name) == "draft"

    # Tab visits all controls in the order of the page, and each is visible.
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    met = []
    for _ in range(60):
        keyboard.press("Tab")
        seen = page.evaluate(
            f"""() => {{ const element = document.activeElement; const box = element.getBoundingClientRect();
                 const style = getComputedStyle(element.closest("#composer") && element.id === "draft" ? element.closest("#composer") : element);
                 const outside = box.right <= 0 || box.bottom <= 0 || box.left >= innerWidth || box.top >= innerHeight;
                 const ring = style.outlineStyle !== "none" || element.id === "draft" || getComputedStyle(element.closest("label") ?? element).outlineStyle !== "none";
                 return {{ name: {name}, seen: ring && !outside, end: element === document.body }}; }}"""
        )
        if seen["end"]:
            break
        assert seen["seen"], seen
        met.append(seen["name"])
    order = ["To the message field", "clear", "theme", "open-panel", "Edit", "Delete", "Regenerate", "Edit", "Delete", "draft", "probabilities-wanted", "go",
             "tab-settings", "mode-chat", "system", "set-temperature", "set-seed", "stop", "schema", "reset"]
    assert [name for name in met if name in order] == order, met

    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    keyboard.press("Tab")
    keyboard.press("Enter")
    assert page.evaluate(name) == "draft", "the first stop leads to the field"
    page.focus("#tab-settings")
    for tab in ["tab-request", "tab-server", "tab-settings"]:
        keyboard.press("ArrowRight")
        assert page.evaluate(name) == tab
        assert page.is_visible(f"#view-{tab.removeprefix('tab-')}")
    page.focus("#open-panel")
    keyboard.press("Enter")
    assert not page.is_visible("#panel")
    keyboard.press("Enter")
    assert page.is_visible("#panel") and page.evaluate(name) == "tab-settings"


def test_everything_has_a_name(server, visit):
    visited = visit(server, 1280, 800)
    talk(visited)
    for place in PLACES:
        visited.tab(place)
        nameless = visited.page.evaluate(
            """() => [...document.querySelectorAll("button, a, input:not([aria-hidden]), textarea, [role=tabpanel], pre[tabindex]")]
                 .filter((element) => element.checkVisibility() && !element.ariaLabel && !element.textContent.trim()
                   && !element.labels?.length && !element.getAttribute("aria-labelledby"))
                 .map((element) => element.outerHTML)"""
        )
        assert nameless == []
