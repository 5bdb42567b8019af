"""Tests that every message can be edited and deleted, and that the tree of versions stays whole."""

import json


def talk(visited, *pairs):
    for question, answer in pairs:
        visited.page.unroute_all()
        visited.says(answer)
        visited.ask(question)
        visited.wait_for_end()


def sent(visited) -> list:
    return [(message["role"], message["content"]) for message in visited.sent[-1][1]["messages"]]


def button(visited, message: int, name: str):
    return visited.page.locator(".message").nth(message).get_by_role("button", name=name, exact=True)


THREE = [("Apples?", "Red."), ("Boats?", "They float."), ("Clouds?", "They drift.")]


def test_messages_in_the_middle_are_edited(server, visit):
    visited = visit(server)
    talk(visited, *THREE)
    facts = visited.page.locator(".facts").nth(0).inner_text()
    button(visited, 1, "Edit answer").click()
    field = visited.page.get_by_label("Edit the answer")
    assert field.input_value() == "Red." and visited.page.evaluate("document.activeElement.localName") == "textarea"
    field.fill("Green.\nOr red.")
    visited.page.keyboard.press("Enter")
    assert field.is_visible(), "an answer has several lines"
    field.fill("**Green.**")
    visited.page.keyboard.press("Control+Enter")
    button(visited, 2, "Edit").click()
    visited.page.get_by_label("Edit the message").fill("Ships?")
    button(visited, 2, "Save").click()
    expected = ["Apples?", "Green.", "Ships?", "They float.", "Clouds?", "They drift."]
    assert visited.messages() == expected and len(visited.sent) == 3, "nothing was asked"
    assert visited.page.locator(".facts").nth(0).inner_text() == f"{facts} · edited by you"
    assert visited.page.locator(".versions").count() == 0
    # What is cancelled, or empty, changes nothing.
    for text, key in [("Yellow.", "Escape"), ("", "Control+Enter")]:
        button(visited, 1, "Edit answer").click()
        visited.page.get_by_label("Edit the answer").fill(text)
        visited.page.keyboard.press(key)
        assert visited.messages() == expected
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.messages() == expected
    talk(visited, ("Dogs?", "They bark."))
    assert sent(visited) == [("user", "Apples?"), ("assistant", "**Green.**"), ("user", "Ships?"), ("assistant", "They float."),
                             ("user", "Clouds?"), ("assistant", "They drift."), ("user", "Dogs?")]
    # A changed answer can be continued, which it could not before.
    assert visited.page.get_by_role("button", name="Continue").count() == 0
    button(visited, 7, "Edit answer").click()
    visited.page.get_by_label("Edit the answer").fill("They")
    button(visited, 7, "Save").click()
    button(visited, 7, "Continue").click()
    visited.wait_for_end()
    assert visited.messages()[-1] == "TheyThey bark." and visited.sent[-1][1]["continue_final_message"] is True


def test_messages_in_the_middle_are_deleted(server, visit):
    visited = visit(server)
    talk(visited, *THREE)
    whole = visited.messages()
    for at, role in [(3, "answer"), (0, "message"), (5, "answer"), (2, "message")]:
        button(visited, at, "Delete answer" if role == "answer" else "Delete").click()
        assert visited.messages() == whole[:at] + whole[at + 1 :]
        assert visited.page.locator("#toast").inner_text().startswith(f"The {role} was deleted.")
        assert visited.page.evaluate("document.activeElement.id") == "log", "Tab goes on from here"
        visited.click("Undo")
        assert visited.messages() == whole
    button(visited, 0, "Delete").click()
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.messages() == whole[1:], "it outlives a reload"
    talk(visited, ("Dogs?", "They bark."))
    assert sent(visited)[0] == ("assistant", "Red.") and sent(visited)[-1] == ("user", "Dogs?")


def test_the_last_message_is_deleted(server, visit):
    visited = visit(server)
    talk(visited, ("Apples?", "Red."))
    button(visited, 1, "Delete answer").click()
    button(visited, 0, "Delete").click()
    assert visited.messages() == [] and visited.page.is_visible("#empty")
    visited.until("document.querySelectorAll('#conversations li').length === 0")
    visited.click("Undo")
    assert visited.messages() == ["Apples?"]
    visited.until("document.querySelectorAll('#conversations li').length === 1")
    button(visited, 0, "Delete").click()
    visited.until("document.querySelectorAll('#conversations li').length === 0")
    visited.page.reload()
    visited.page.wait_for_selector("#found:not(:empty)")
    assert visited.page.locator("#conversations li").count() == 0, "no empty conversation is kept"


def test_versions_stay_when_one_is_deleted(server, visit):
    visited = visit(server)
    talk(visited, ("Apples?", "Red."), ("Boats?", "They float."))
    visited.page.unroute_all()
    visited.says("Green.")
    button(visited, 1, "Regenerate").click()
    visited.wait_for_end()
    assert visited.messages() == ["Apples?", "Green."]
    # Another version takes the place of one without messages after it.
    button(visited, 1, "Delete answer").click()
    assert visited.messages() == ["Apples?", "Red.", "Boats?", "They float."]
    assert visited.page.locator(".versions").count() == 0
    visited.click("Undo")
    assert visited.messages() == ["Apples?", "Green."] and visited.page.inner_text(".versions > span") == "2/2"
    visited.page.get_by_role("button", name="Previous version").click()
    # The messages after a deleted version stay, in the place of the version.
    button(visited, 1, "Delete answer").click()
    assert visited.messages() == ["Apples?", "Boats?", "They float."]
    visited.page.locator(".versions button:enabled").click()
    assert visited.messages() == ["Apples?", "Green."]
    # An exported file is checked link by link when it is imported.
    _, text = visited.download("Export as JSON")
    other = visit(server)
    other.upload("Import", ("x.json", text.encode()))
    other.click("Apples?")
    assert other.messages() == ["Apples?", "Green."]


def test_the_system_prompt_is_a_message(server, visit):
    visited = visit(server)
    visited.tab("Settings")
    visited.page.fill("#system", "You are kind.")
    assert visited.messages() == []
    talk(visited, ("Apples?", "Red."))
    assert visited.messages() == ["System prompt\n\nYou are kind.", "Apples?", "Red."]
    button(visited, 0, "Edit system prompt").click()
    visited.page.get_by_label("Edit the system prompt").fill("You are brief.")
    button(visited, 0, "Save").click()
    assert visited.page.input_value("#system") == "You are brief."
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.messages()[0] == "System prompt\n\nYou are brief."
    talk(visited, ("Boats?", "They float."))
    assert sent(visited)[0] == ("system", "You are brief.")
    button(visited, 0, "Delete system prompt").click()
    assert visited.messages()[0] == "Apples?" and visited.page.input_value("#system") == ""
    visited.click("Undo")
    assert visited.messages()[0] == "System prompt\n\nYou are brief."
    button(visited, 0, "Delete system prompt").click()
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.messages()[0] == "Apples?"


# Deletes random turns of random trees. The links must stay valid, the order of the turns that are
# shown must stay, and undoing must restore everything.
TREES = """async (seed) => {
  const { append, choose, newConversation, path, remove } = await import("./tree.js");
  const { parse, toJson } = await import("./transfer.js");
  const random = (below) => { seed = (seed * 1103515245 + 12345) % 2147483648; return Math.floor(seed / 2147483648 * below); };
  const state = ({ first, turns }) => JSON.stringify([first, turns]);
  const problems = [];
  for (let round = 0; round < 60; round++) {
    const talk = newConversation();
    for (let i = 0; i < 12; i++) {
      const parent = random(8) === 0 ? null : talk.turns[random(talk.turns.length)] ?? null;
      append(talk, parent, { role: random(2) ? "user" : "assistant", content: `${i}` });
    }
    for (let i = 0; i < 6; i++) choose(talk, talk.turns[random(12)]);
    while (talk.turns.length > 0) {
      const before = state(talk);
      const shown = path(talk);
      const turn = talk.turns[random(talk.turns.length)];
      const putBack = remove(talk, turn);
      if (talk.turns.includes(turn)) problems.push("it is still there");
      if (talk.turns.length > 0) try { parse(toJson([talk])); } catch (error) { problems.push(error.message); }
      const rest = shown.filter((other) => other !== turn);
      const left = path(talk);
      if (rest.some((other, index) => left[index] !== other)) problems.push("other turns are shown");
      if (!putBack() || state(talk) !== before) problems.push(`undone: ${state(talk)} and not ${before}`);
      remove(talk, turn);
    }
    if (talk.first !== -1) problems.push("the empty tree has a first turn");
  }
  return problems.slice(0, 3);
}"""


def test_random_trees_stay_whole(server, visit):
    visited = visit(server)
    for seed in [1, 2, 3]:
        assert visited.page.evaluate(TREES, seed) == [], json.dumps(seed)
