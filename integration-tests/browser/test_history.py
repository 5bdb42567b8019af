"""Tests the conversations that the browser stores."""

import json

import pytest

EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'


def titles(visited) -> list[str]:
    return visited.page.locator("#conversations .open").all_inner_texts()


def shown(visited, expected: list[str]):
    """Waits until the list is drawn, which happens shortly after a change."""
    visited.until(f"JSON.stringify([...document.querySelectorAll('#conversations .open')].map((e) => e.textContent)) === {json.dumps(json.dumps(expected, ensure_ascii=False, separators=(',', ':')))}")


def three(visited):
    """Starts conversations named after their first message, the newest first."""
    for question, answer in [("Apples?", "They are red."), ("Boats?", "They float."), ("Clouds?", "They drift.")]:
        visited.page.unroute_all()
        visited.says(answer)
        if visited.messages():
            visited.click("New chat")
        visited.ask(question)
        visited.wait_for_end()
    shown(visited, ["Clouds?", "Boats?", "Apples?"])


def test_conversations_are_kept_and_found(server, visit):
    visited = visit(server)
    three(visited)
    visited.page.reload()
    shown(visited, ["Clouds?", "Boats?", "Apples?"])
    visited.page.wait_for_selector(".message")
    assert visited.messages() == ["Clouds?", "They drift."], "the window shows what it has shown"
    visited.click("Apples?")
    assert visited.messages() == ["Apples?", "They are red."]
    assert visited.page.get_attribute("#conversations [aria-current]", "aria-current") == "true"
    visited.page.fill("#search", "FLOAT")
    assert titles(visited) == ["Boats?"] and visited.page.inner_text("#found") == "1 conversation"
    visited.page.fill("#search", "they apples")
    assert titles(visited) == ["Apples?"]
    visited.page.fill("#search", "zebra")
    assert titles(visited) == [] and visited.page.inner_text("#found") == "0 conversations"
    visited.page.fill("#search", "")
    # A new message in an old conversation moves it to the top.
    visited.ask("And pears?")
    visited.wait_for_end()
    shown(visited, ["Apples?", "Clouds?", "Boats?"])
    # Another window of the same browser also shows it.
    other = visited.page.context.new_page()
    other.goto(f"{server.url}/ui/")
    other.locator("#conversations .open").first.wait_for()
    assert other.locator("#conversations .open").all_inner_texts() == ["Apples?", "Clouds?", "Boats?"]
    other.locator("#conversations .open").first.hover()
    other.locator("#conversations .delete").first.click()
    shown(visited, ["Clouds?", "Boats?"])


def test_names_and_deletions(server, visit):
    visited = visit(server)
    three(visited)
    visited.page.focus("#conversations .current .open")
    keyboard = visited.page.keyboard
    keyboard.press("ArrowDown")
    assert visited.page.evaluate("document.activeElement.textContent") == "Boats?"
    keyboard.press("F2")
    keyboard.type(EVIL)
    keyboard.press("Enter")
    shown(visited, ["Clouds?", EVIL, "Apples?"])
    assert visited.page.evaluate("document.activeElement.textContent") == EVIL, "the focus is where it was"
    keyboard.press("F2")
    keyboard.type("Never mind")
    keyboard.press("Escape")
    shown(visited, ["Clouds?", EVIL, "Apples?"])
    keyboard.press("Delete")
    shown(visited, ["Clouds?", "Apples?"])
    assert visited.page.evaluate("document.activeElement.textContent") == "Apples?"
    assert EVIL in visited.page.inner_text("#toast")
    visited.click("Undo")
    shown(visited, ["Clouds?", EVIL, "Apples?"])
    assert not visited.page.is_visible("#toast")
    # The current conversation can be deleted, and undoing restores its messages.
    visited.page.locator("#conversations .current .delete").click()
    assert visited.messages() == [] and visited.page.is_visible("#empty")
    visited.click("Undo")
    assert visited.messages() == ["Clouds?", "They drift."]
    visited.page.locator("#conversations .current .delete").click()
    visited.page.reload()
    shown(visited, [EVIL, "Apples?"])
    assert visited.page.evaluate("window.hacked") is None


def test_changes_survive_leaving_the_page_at_once(server, visit):
    visited = visit(server)
    three(visited)
    for expected in (["Boats?", "Apples?"], ["Apples?"], []):
        # The page has no time between the last click and the reload.
        with visited.page.expect_navigation():
            visited.page.evaluate("""() => {
                const click = (selector) => document.querySelector(selector).click();
                click("#conversations .delete");
                click("#toast button");
                click("#conversations .delete");
                location.reload();
            }""")
        visited.page.locator("#conversations .open, #found:not(:empty)").first.wait_for()
        assert titles(visited) == expected


def test_deleting_what_is_being_answered(server, visit):
    visited = visit(server)
    visited.begun("Tell me a story about a fox and a lantern.")
    with server.frozen():
        visited.waits_for_more()
        visited.page.locator("#conversations .current .delete").click()
        assert visited.messages() == [] and visited.page.inner_text("#go") == "Send"
    visited.page.reload()
    visited.page.wait_for_selector("#found:not(:empty)")
    assert titles(visited) == [], "it stays deleted"


def test_a_name_is_written_while_an_answer_comes(server, visit):
    visited = visit(server)
    three(visited)
    visited.page.unroute_all()
    visited.streams_slowly([{"content": "More. "}] * 30, 100)
    visited.ask("And pears?")
    visited.page.focus("#conversations .current .open")
    visited.page.keyboard.press("F2")
    visited.page.keyboard.type("Pears")
    visited.wait_for_end()
    assert visited.page.evaluate("document.activeElement.value") == "Pears", "the list was drawn meanwhile"
    visited.page.keyboard.press("Enter")
    shown(visited, ["Pears", "Boats?", "Apples?"])


def test_an_answer_is_kept_while_it_comes(server, visit):
    visited = visit(server)
    visited.streams_slowly([{"content": f"word{i} "} for i in range(200)], 100)
    visited.ask("Count!")
    visited.until("import('./store.js').then((store) => store.readAll()).then((all) => all[0]?.turns[1]?.content.includes('word9 '))")
    visited.page.reload()
    visited.page.wait_for_selector(".message.assistant")
    assert visited.answer().startswith("word0 word1 ")
    assert visited.page.get_by_role("button", name="Continue").is_visible()


def test_export_and_import(server, visit):
    visited = visit(server)
    three(visited)
    name, text = visited.download("Export as Markdown")
    assert (name, text) == ("Clouds.md", "# Clouds?\n\n## You\n\nClouds?\n\n## Answer\n\nThey drift.\n")
    name, one = visited.download("Export as JSON")
    assert name == "Clouds.json" and len(json.loads(one)["conversations"]) == 1
    name, every = visited.download("Export all")
    assert [c["turns"][0]["content"] for c in json.loads(every)["conversations"]] == ["Clouds?", "Boats?", "Apples?"]
    other = visit(server)
    other.upload("Import", (name, every.encode()))
    shown(other, ["Clouds?", "Boats?", "Apples?"])
    other.click("Boats?")
    assert other.messages() == ["Boats?", "They float."]
    other.upload("Import", (name, every.encode()))
    other.page.locator("#toast").get_by_text("0 conversations imported, 3 known already.").wait_for()
    assert len(titles(other)) == 3
    other.page.reload()
    shown(other, ["Clouds?", "Boats?", "Apples?"])


def conversation(**changes) -> dict:
    turns = [{"role": "user", "parent": -1, "next": 1, "content": EVIL, "files": [{"name": EVIL, "text": EVIL}]},
             {"role": "assistant", "parent": 0, "next": -1, "content": EVIL, "reasoning": EVIL, "finish": EVIL[:40], "error": EVIL,
              "calls": [{"id": EVIL, "name": EVIL, "arguments": EVIL, "result": EVIL}], "__proto__": {"hacked": 1}, "generated": -5}]
    return {"id": "evil", "title": EVIL, "created": 1, "updated": 2, "first": 0, "turns": turns, **changes}


def exported(*conversations) -> bytes:
    return json.dumps({"format": "millrace.conversations", "version": 1, "conversations": conversations}).encode()


def test_an_imported_conversation_is_text_alone(server, visit):
    visited = visit(server)
    visited.upload("Import", ("evil.json", exported(conversation())))
    shown(visited, [EVIL])
    visited.click(EVIL)
    for _ in range(2):
        visited.page.locator("summary").evaluate_all("(all) => all.forEach((summary) => (summary.parentElement.open = true))")
        assert visited.page.inner_text(".user .content").count(EVIL) == 3
        assert visited.page.inner_text(".assistant .content").count(EVIL) >= 4
        tags = set(visited.page.evaluate("[...document.querySelectorAll('#log *, #history *, #toast *')].map((e) => e.localName)"))
        assert not {"img", "script", "svg"} & tags, tags
        assert visited.page.evaluate("window.hacked ?? {}.hacked") is None
        visited.page.reload()
        visited.page.wait_for_selector(".message")
    assert EVIL in visited.download("Export as Markdown")[1]


TURN = {"role": "user", "parent": -1, "next": -1, "content": "x"}

REFUSED = [
    (b"{", "not a JSON file"),
    (b"[]", "not exported from this page"),
    (b"null", "not exported from this page"),
    (b'{"format": "millrace.conversations", "version": 2}', "another version"),
    (b'{"format": "millrace.conversations", "version": 1}', "no conversations"),
    (exported(*[conversation()] * 501), "more than 500 conversations"),
    (exported(7), "Conversation 1 of this file cannot be read: it is not an object"),
    (exported(conversation(), conversation(title=7)), "Conversation 2 of this file cannot be read: title is not a text"),
    (exported(conversation(title="x" * 201)), "longer than 200 characters"),
    (exported(conversation(turns=[])), "no turns"),
    (exported(conversation(turns=[TURN] * 2001)), "more than 2000 entries"),
    (exported(conversation(turns=[{**TURN, "role": "system"}])), "unknown role"),
    (exported(conversation(turns=[{**TURN, "content": None}])), "content is not a text"),
    (exported(conversation(turns=[{**TURN, "content": "x" * 2_000_001}])), "longer than 2000000"),
    (exported(conversation(turns=[{**TURN, "parent": 0}])), "no parent before it"),
    (exported(conversation(turns=[{**TURN, "next": 0}])), "followed by none of its children"),
    (exported(conversation(turns=[TURN], first=1)), "first turn is missing"),
    (exported(conversation(turns=[{**TURN, "files": "x"}])), "files is not a list"),
    (exported(conversation(turns=[{**TURN, "calls": [{"name": 1}]}])), "name is not a text"),
    (b" " * (32 * 1024 * 1024 + 1), "too large"),
]


def test_files_that_cannot_be_imported(server, visit):
    visited = visit(server)
    for content, message in REFUSED:
        visited.upload("Import", ("some.json", content))
        visited.page.locator("#import-trouble").get_by_text(message).wait_for()
    visited.upload("Import", ("deep.json", b"[" * 1_000_000))
    visited.page.locator("#import-trouble").get_by_text("not a JSON file").wait_for()
    assert titles(visited) == []
    visited.upload("Import", ("good.json", exported(conversation(title="Good"))))
    shown(visited, ["Good"])
    assert not visited.page.is_visible("#import-trouble")


@pytest.mark.parametrize("how, told", [
    ("IDBFactory.prototype.open = () => { throw new DOMException('no', 'SecurityError'); }", "end with this page"),
    ("IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); }", "no more space"),
])
def test_a_browser_that_keeps_nothing(server, visit, how, told):
    visited = visit(server)
    visited.page.add_init_script(how)
    visited.page.reload()
    visited.says("An answer.")
    visited.ask("A question?")
    visited.wait_for_end()
    visited.page.locator("#keeping").get_by_text(told).wait_for()
    visited.click("New chat")
    visited.click("A question?")
    assert visited.messages() == ["A question?", "An answer."], "until the page is left"


def test_what_is_kept_is_bounded(server, visit):
    visited = visit(server)
    visited.says("x" * 500)
    bound = lambda name, value: visited.page.evaluate("([name, value]) => import('./library.js').then(({ BOUNDS }) => void (BOUNDS[name] = value))", [name, value])
    one = lambda question: (visited.ask(question), visited.wait_for_end())
    one("First?")
    bound("all", 1000)
    visited.click("New chat")
    one("Second?")
    visited.page.locator("#keeping").get_by_text("no room for more").wait_for()
    assert visited.answer() == "x" * 500 and titles(visited)[-1] == "First?"
    visited.upload("Import", ("x.json", exported(conversation(title="Third", turns=[{**TURN, "content": "x" * 600}]))))
    visited.page.locator("#toast").get_by_text("0 conversations imported, 1 left out.").wait_for()
    bound("all", 10_000)
    bound("one", 700)
    visited.click("Regenerate")
    visited.wait_for_end()
    visited.page.locator("#keeping").get_by_text("too long to be kept").wait_for()
    bound("one", 10_000)
    bound("conversations", 1)
    visited.click("New chat")
    one("Fourth?")
    visited.page.locator("#keeping").get_by_text("keeps 1 conversations").wait_for()
    visited.upload("Import", ("x.json", exported(conversation())))
    visited.page.locator("#import-trouble").get_by_text("there is room for").wait_for()
    bound("conversations", 500)
    visited.click("Regenerate")
    visited.wait_for_end()
    visited.page.wait_for_selector("#keeping", state="hidden")
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert titles(visited)[0] == "Fourth?"


def test_the_list_on_a_telephone(server, visit):
    visited = visit(server, 360, 780, has_touch=True)
    visited.says("An answer.")
    visited.ask("A question?")
    visited.wait_for_end()
    assert not visited.page.is_visible("#history")
    visited.click("Chats")
    assert visited.page.get_attribute("#open-history", "aria-expanded") == "true"
    assert visited.page.evaluate("document.activeElement.id") == "search"
    visited.page.keyboard.press("Escape")
    assert not visited.page.is_visible("#history")
    visited.click("Chats")
    assert visited.page.locator("#conversations .delete").is_visible()
    visited.click("A question?")
    assert not visited.page.is_visible("#history") and visited.messages()[0] == "A question?"
