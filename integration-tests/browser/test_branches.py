"""Tests several answers to one question, and several versions of one question."""


def say(visited, text):
    visited.page.unroute_all()
    visited.says(text)


def test_regenerated_answers_are_versions(server, visit):
    visited = visit(server)
    say(visited, "One.")
    visited.ask("Count!")
    visited.wait_for_end()
    assert visited.page.locator(".versions").count() == 0
    for text in ["Two.", "Three."]:
        say(visited, text)
        visited.click("Regenerate")
        visited.wait_for_end()
    assert visited.messages() == ["Count!", "Three."]
    assert visited.page.inner_text(".versions > span") == "3/3"
    assert visited.page.get_by_role("button", name="Next version").is_disabled()
    # A branch continues on its own and is shown again as it was left.
    say(visited, "More of three.")
    visited.ask("More!")
    visited.wait_for_end()
    previous = visited.page.get_by_role("button", name="Previous version")
    previous.click()
    assert visited.messages() == ["Count!", "Two."]
    assert visited.page.evaluate("document.activeElement.ariaLabel") == "Previous version"
    visited.page.keyboard.press("Enter")
    assert visited.messages() == ["Count!", "One."] and visited.page.inner_text(".versions > span") == "1/3"
    assert visited.page.evaluate("document.activeElement.ariaLabel") == "Next version", "the other cannot be pressed"
    say(visited, "More of one.")
    visited.ask("More!")
    visited.wait_for_end()
    sent = [message["content"] for message in visited.sent[-1][1]["messages"]]
    assert sent == ["Count!", "One.", "More!"], "only the branch that is shown is sent"
    visited.page.keyboard.press("Escape")
    visited.page.get_by_role("button", name="Next version").click()
    visited.page.get_by_role("button", name="Next version").click()
    assert visited.messages() == ["Count!", "Three.", "More!", "More of three."]
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.messages() == ["Count!", "Three.", "More!", "More of three."], "the choice outlives a reload"
    # The branches are also kept in an exported file.
    _, text = visited.download("Export as JSON")
    other = visit(server)
    other.upload("Import", ("x.json", text.encode()))
    other.click("Count!")
    other.page.get_by_role("button", name="Previous version").click()
    assert other.messages() == ["Count!", "Two."]


def test_edited_questions_are_versions(server, visit):
    visited = visit(server)
    say(visited, "Red.")
    visited.ask("Apples?")
    visited.wait_for_end()
    say(visited, "Yellow.")
    visited.click("Edit")
    visited.page.fill(".editing textarea", "Pears?")
    visited.page.press(".editing textarea", "Enter")
    visited.wait_for_end()
    assert visited.messages() == ["Pears?", "Yellow."]
    assert [m["content"] for m in visited.sent[-1][1]["messages"]] == ["Pears?"]
    visited.page.locator(".user").get_by_role("button", name="Previous version").click()
    assert visited.messages() == ["Apples?", "Red."]


def test_an_answer_that_failed_is_replaced(server, visit):
    visited = visit(server)
    visited.expected = ["500"]
    visited.page.route("**/v1/**", lambda route: route.fulfill(status=500, json={"error": {"message": "It broke"}}))
    visited.ask("Apples?")
    visited.page.wait_for_selector(".error")
    say(visited, "Red.")
    visited.click("Try again")
    visited.wait_for_end()
    assert visited.messages() == ["Apples?", "Red."] and visited.page.locator(".versions").count() == 0


def test_a_cut_answer_is_continued_in_its_place(server, visit):
    visited = visit(server)
    visited.begun("Tell me a story about a fox and a lantern.")
    kept = visited.answer()
    assert visited.facts().startswith("20 tokens") and "longest length" in visited.facts()
    visited.set("max_tokens", 5)
    visited.click("Continue")
    visited.wait_for_end()
    body = visited.sent[-1][1]
    assert body["continue_final_message"] is True and body["messages"][-1]["role"] == "assistant"
    assert visited.answer().startswith(kept.rstrip()) and len(visited.answer()) > len(kept)
    assert visited.facts().startswith("25 tokens"), "the whole answer is counted"
    assert visited.page.locator(".versions").count() == 0


def test_another_conversation_stops_the_answer_and_keeps_it(server, visit):
    visited = visit(server)
    visited.begun("Tell me a story about a fox and a lantern.")
    kept = visited.answer()
    with server.frozen():
        visited.waits_for_more()
        visited.click("New chat")
        assert visited.page.inner_text("#go") == "Send" and visited.messages() == []
    visited.page.locator("#conversations .open").first.click()
    assert visited.answer() == kept and "stopped by you" in visited.facts()
