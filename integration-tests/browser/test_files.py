"""Tests files that are attached to a message."""

EVIL = '<img src=x onerror="window.hacked = 1">`\n```.py'


def drop(visited, *files: tuple[str, str], how="drop"):
    """Tests files that are dropped on the conversation or pasted into the message."""
    visited.page.evaluate(
        """([files, how]) => {
          const data = new DataTransfer();
          for (const [name, text] of files) data.items.add(new File([text], name));
          const draft = document.getElementById("draft");
          if (how === "paste") return draft.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
          for (const name of ["dragover", "drop"]) draft.dispatchEvent(new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        [files, how],
    )


def attached(visited) -> list[str]:
    return visited.page.locator("#files .name").all_inner_texts()


def test_files_become_part_of_the_prompt(server, visit):
    visited = visit(server)
    visited.says("I see.")
    visited.upload("Attach", ("main.py", "print('ä')\r\n".encode()), ("notes", b"```\nfenced\n```"))
    visited.page.locator("#files li").nth(1).wait_for()
    drop(visited, ("dropped.txt", "<b>dropped</b>"))
    visited.page.locator("#files li").nth(2).wait_for()
    drop(visited, ("pasted.rs", "fn main() {}"), how="paste")
    visited.page.locator("#files li").nth(3).wait_for()
    assert attached(visited) == ["main.py", "notes", "dropped.txt", "pasted.rs"]
    visited.page.get_by_role("button", name="Remove dropped.txt").click()
    assert attached(visited) == ["main.py", "notes", "pasted.rs"]
    visited.page.fill("#draft", "What is this?")
    visited.tab("Request")
    assert "fn main() {}" in visited.page.text_content("#snippet-curl"), "the programs send the files too"
    visited.page.press("#draft", "Enter")
    visited.wait_for_end()
    expected = "main.py:\n```py\nprint('ä')\n```\n\nnotes:\n````\n```\nfenced\n```\n````\n\npasted.rs:\n```rs\nfn main() {}\n```\n\nWhat is this?"
    assert visited.sent[-1][1]["messages"] == [{"role": "user", "content": expected}]
    assert attached(visited) == [] and not visited.page.is_visible("#files")
    summaries = visited.page.locator(".user summary")
    assert summaries.all_inner_texts() == ["main.py", "notes", "pasted.rs"]
    summaries.nth(0).click()
    assert visited.page.locator(".user pre").nth(0).inner_text() == "print('ä')\n"
    # The files belong to the message: an edited message and the next request also contain them.
    visited.click("Edit")
    visited.page.fill(".editing textarea", "And now?")
    visited.page.press(".editing textarea", "Enter")
    visited.wait_for_end()
    assert visited.sent[-1][1]["messages"][0]["content"] == expected.replace("What is this?", "And now?")
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert summaries.count() == 3
    # A file alone is a question.
    visited.click("New chat")
    visited.upload("Attach", ("alone.txt", b"x"))
    visited.page.locator("#files li").wait_for()
    visited.click("Send")
    visited.wait_for_end()
    assert visited.sent[-1][1]["messages"][0]["content"] == "alone.txt:\n```txt\nx\n```"


def test_files_that_are_left_out(server, visit):
    visited = visit(server)
    trouble = visited.page.locator("#file-trouble")
    for name, content, told in [
        ("photo.png", b"\x89PNG\r\n\x1a\n\x00\x00", "not a text in UTF-8"),
        ("zeros.txt", b"a\0b", "not a text in UTF-8"),
        ("latin.txt", "ä".encode("latin-1"), "not a text in UTF-8"),
        ("large.txt", b"x" * (512 * 1024 + 1), "is too large: it has 513 KiB, and a file may have 512 KiB"),
    ]:
        visited.upload("Attach", (name, content))
        trouble.get_by_text(f"{name}").wait_for()
        assert told in trouble.inner_text()
        assert attached(visited) == []
    visited.upload("Attach", *[(f"{i}.txt", b"x" * 500 * 1024) for i in range(3)])
    trouble.get_by_text("2.txt was left out: the files of a message may have 1.0 MiB together").wait_for()
    assert attached(visited) == ["0.txt", "1.txt"]
    for _ in range(2):
        visited.page.locator("#files button").first.click()
    visited.upload("Attach", *[(f"{i}.txt", b"x") for i in range(21)])
    trouble.get_by_text("20.txt was left out: a message takes 20 files").wait_for()
    assert len(attached(visited)) == 20
    visited.page.locator("#files button").first.click()
    visited.upload("Attach", ("one.txt", b"x"))
    visited.until("document.querySelectorAll('#files li').length === 20")
    assert not trouble.is_visible(), "the trouble is over"


def test_names_are_text_and_stay_on_their_line(server, visit):
    visited = visit(server)
    visited.says("I see.")
    drop(visited, (EVIL, EVIL), ("x" * 300, "long"))
    visited.page.locator("#files li").nth(1).wait_for()
    assert attached(visited)[0] == '<img src=x onerror="window.hacked = 1"> .py' and len(attached(visited)[1]) == 120
    visited.ask("What is this?")
    visited.wait_for_end()
    prompt = visited.sent[-1][1]["messages"][0]["content"]
    assert prompt.startswith(f'<img src=x onerror="window.hacked = 1"> .py:\n````py\n{EVIL}\n````\n')
    assert visited.page.locator("#log img, #composer img").count() == 0 and visited.page.evaluate("window.hacked") is None
    assert visited.page.evaluate("document.scrollingElement.scrollWidth") <= 1440
