"""Tests the parts of an answer: reasoning, calls, code, formulas, tokens, and their speed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}]'
EVIL = '<img src=x onerror="window.hacked = 1">'


def test_thoughts_are_folded(server, visit):
    visited = visit(server)
    words = [f"word{i} " for i in range(30)]
    deltas = [{"content": text} for text in ["<thi", "nk>\n", EVIL, *words, "</thi", "nk>\n\n", "The **answer**."]]
    visited.streams_slowly(deltas, 30)
    visited.ask("Think!")
    thinking = visited.page.locator(".thinking")
    thinking.get_by_text("Thinking…").wait_for()
    assert not thinking.evaluate("(details) => details.open")
    thinking.locator("summary").click()
    visited.until("document.querySelector('.thinking').textContent.includes('word9')")
    assert thinking.evaluate("(details) => details.open"), "more has come, and it is still open"
    visited.wait_for_end()
    assert thinking.evaluate("(details) => details.open")
    told = thinking.locator("summary").inner_text()
    assert 0.9 < float(re.fullmatch(r"Thought for (\d+\.\d) s", told)[1]) < 9, told
    assert visited.page.inner_text(".assistant .content > .blocks") == "The answer."
    assert EVIL in thinking.inner_text() and "<think" not in visited.answer()
    # The duration is kept after a reload.
    visited.page.reload()
    assert visited.page.inner_text(".thinking summary") == told
    assert visited.page.locator("#log img").count() == 0


@pytest.mark.parametrize("deltas, thought, said", [
    ([{"reasoning_content": "Hm, "}, {"reasoning_content": "so."}, {"content": "Yes."}], "Hm, so.", "Yes."),
    ([{"reasoning": "Hm."}, {"content": "Yes."}], "Hm.", "Yes."),
    ([{"content": "Opened by the template.\n</think>\n\nYes."}], "Opened by the template.", "Yes."),
    ([{"content": "<think>\n\n</think>\n\nYes."}], "", "Yes."),
    ([{"content": "<think>Never ended"}], "Never ended", ""),
    ([{"content": "The tag </think> ends thoughts."}], None, "The tag </think> ends thoughts."),
    ([{"content": "<"}], None, "<"),
])
def test_what_thoughts_are(server, visit, deltas, thought, said):
    visited = visit(server)
    visited.streams(deltas)
    visited.ask("Think!")
    visited.wait_for_end()
    assert visited.page.inner_text(".assistant .content > .blocks") == said
    thoughts = visited.page.locator(".thinking > .blocks")
    assert (thoughts.text_content() if thoughts.count() else None) == (thought or None)


def test_calls_are_shown_and_answered(server, visit):
    visited = visit(server)
    visited.tab("Settings")
    visited.page.fill("#tools", "[1]")
    visited.ask("How is the weather?")
    assert visited.page.evaluate("document.activeElement.id") == "tools" and visited.sent == []
    visited.page.fill("#tools", TOOLS)
    call = lambda index, **function: {"tool_calls": [{"index": index, "id": f"call_{index}" if "name" in function else None, "function": function}]}
    visited.streams([{"content": "Let me see."}, call(0, name="weather", arguments=""), call(0, arguments='{"town": '), call(0, arguments='"Oslo"}'),
                     call(1, name="weather", arguments=f'{{"town": "{EVIL[:4]}"}}')], "tool_calls")
    visited.page.press("#draft", "Enter")
    visited.wait_for_end()
    assert visited.sent[-1][1]["tools"][0]["function"]["name"] == "weather"
    calls = visited.page.locator(".call")
    assert calls.count() == 2 and calls.nth(0).locator("summary").inner_text() == "Call of weather"
    assert calls.nth(0).locator("code").nth(1).inner_text() == '{\n  "town": "Oslo"\n}'
    calls.nth(0).locator("summary").click()
    assert not calls.nth(0).locator("pre").is_visible(), "it can be folded"
    # The user provides the results of the tools.
    visited.page.unroute_all()
    visited.says("It rains in Oslo.")
    fields = visited.page.get_by_label("Result of weather")
    fields.nth(0).fill("rain")
    fields.nth(1).fill("sun")
    visited.click("Send results")
    visited.page.get_by_text("It rains in Oslo.").wait_for()
    visited.wait_for_end()
    asked, first, second = visited.sent[-1][1]["messages"][1:]
    assert asked["content"] == "Let me see." and [c["id"] for c in asked["tool_calls"]] == ["call_0", "call_1"]
    assert asked["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"town": "Oslo"}'}
    assert (first, second) == ({"role": "tool", "tool_call_id": "call_0", "content": "rain"}, {"role": "tool", "tool_call_id": "call_1", "content": "sun"})
    assert "continue_final_message" not in visited.sent[-1][1]
    assert visited.page.locator(".results").count() == 0
    visited.page.reload()
    visited.page.wait_for_selector(".call")
    assert "rain" in visited.page.locator(".call").nth(0).text_content()


RULES = [
    {"when": "last == 'tool'", "say": "<think>\nThe tool says sun.\n</think>\n\nIt will be $25$ degrees in Oslo."},
    {"when": "tools", "say": '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>'},
]


def test_a_model_that_calls_and_thinks(start, visit, tmp_path):
    """Tests the same parts with the real server. The model is forced to generate them."""
    rules, model = tmp_path / "rules.json", tmp_path / "model"
    rules.write_text(json.dumps(RULES))
    subprocess.run([sys.executable, Path(__file__).parents[1] / "clients/scripted.py", model, rules], check=True)
    visited = visit(start("--model-id", str(model)))
    visited.tab("Settings")
    visited.page.fill("#tools", TOOLS)
    visited.ask("How is the weather?")
    visited.wait_for_end()
    assert visited.page.inner_text(".call summary") == "Call of weather"
    assert json.loads(visited.page.locator(".call pre").inner_text()) == {"town": "Oslo"}
    visited.page.get_by_label("Result of weather").fill("sunny")
    visited.click("Send result")
    visited.until("document.querySelectorAll('.assistant').length === 2")
    visited.wait_for_end()
    visited.until("document.querySelector('#log math') !== null")
    assert visited.page.inner_text(".message:last-child .blocks:not(.thinking *)").startswith("It will be")
    assert "The tool says sun." in visited.page.locator(".thinking").text_content()
    assert visited.page.locator(".error").count() == 0


def test_calls_within_the_text(server, visit):
    visited = visit(server)
    visited.says('Well.\n<tool_call>\n{"name": "look", "arguments": {"at": "<b>"}}\n</tool_call>\n<tool_call>nonsense</tool_call>')
    visited.ask("Look!")
    visited.wait_for_end()
    assert visited.page.inner_text(".call summary") == "Call of look"
    said = visited.page.inner_text(".assistant .content > .blocks")
    assert "Well." in said and "look" not in said and "<tool_call>nonsense</tool_call>" in said


CODE = {
    "python": ("def f(x):\n    return 'a' # b", {"keyword": "def", "string": "'a'", "comment": "# b"}),
    "rs": ("fn main() { let x = 1; }", {"keyword": "fn", "number": "1"}),
    "JSON": ('{"a": [1, true]}', {"property": '"a"', "number": "1", "boolean": "true"}),
    "html": ("<b onclick=\"window.hacked = 1\">x</b><script>window.hacked = 1</script>", {"tag": None}),
    "sh": ("echo \"$HOME\" # x", {"comment": "# x"}),
    "c++": ("int main() { return 0; }", {"keyword": "int"}),
    "diff": ("-a\n+b", {"inserted-sign": None}),
}


def test_code_is_coloured(server, visit):
    visited = visit(server)
    visited.says("\n\n".join(f"```{language}\n{text}\n```" for language, (text, _) in CODE.items()) + "\n\n```nolanguage\nlet x\n```\n\nThe end.")
    visited.ask("Code!")
    visited.wait_for_end()
    visited.until(f"[...document.querySelectorAll('.code code')].filter((e) => e.querySelector('[class^=syntax-]')).length === {len(CODE)}")
    for index, (text, spans) in enumerate(CODE.values()):
        code = visited.page.locator(".assistant .code code").nth(index)
        assert code.text_content() == text, "colours change no text"
        for kind, said in spans.items():
            first = code.locator(f".syntax-{kind}").first
            assert said is None or first.text_content() == said, (kind, said)
    assert visited.page.evaluate("window.hacked") is None
    colours = visited.page.evaluate("['keyword', 'string', 'comment'].map((k) => getComputedStyle(document.querySelector('.syntax-' + k)).color)")
    assert len(set(colours)) == 3
    # The library is loaded on first use and not before.
    assert any("vendor/prism.js" in url for url in visited.asked) and not any("vendor/temml.js" in url for url in visited.asked)


def test_formulas(server, visit):
    visited = visit(server)
    visited.says("The area $\\pi r^2$ costs $5 or $6, and \\(x_1\\).\n\n$$\n\\int_0^1 \\frac{a}{b} dx\n$$\n\n\\[ \\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix} \\]\n\n"
                 "Broken: $\\frac{$ and `$x$`.\n\n```\n$y$\n```")
    visited.ask("Formulas!")
    visited.wait_for_end()
    visited.until("document.querySelectorAll('#log math').length === 4")
    assert visited.page.locator("#log math[display=block]").count() == 2
    assert visited.page.locator("#log math mfrac").count() == 1 and visited.page.locator("#log mtd").count() == 4
    text = visited.page.inner_text(".assistant .content")
    assert "costs $5 or $6" in text and "$\\frac{$" in text and "$x$" in text and "$y$" in text
    assert visited.page.get_by_label("\\pi r^2").count() == 1


HOSTILE = [
    "\\href{javascript:window.hacked=1}{x}", "\\url{javascript:window.hacked=1}", "\\includegraphics{https://example.org/x.png}", "\\htmlStyle{background:url(https://example.org)}{x}",
    "\\class{a}{x}", "\\text{<img src=x onerror=window.hacked=1>}", "\\def\\a{\\a\\a}\\a", "\\rule{9999em}{9999em}", "{" * 900, "\\frac" * 300, "\\sqrt{" * 300 + "}" * 300,
    "\\color{url(https://example.org)}x", "\\gdef\\x{\\x\\x\\x}" * 20 + "\\x",
]


def test_hostile_formulas(server, visit):
    visited = visit(server)
    visited.says("\n\n".join(f"$$\n{tex}\n$$" for tex in HOSTILE) + "\n\n$z$")
    visited.ask("Formulas!")
    visited.wait_for_end()
    visited.page.get_by_label("z", exact=True).wait_for()
    assert visited.page.evaluate("window.hacked") is None
    assert visited.page.locator("#log :is(a, img, script)").count() == 0
    assert visited.page.evaluate("Math.max(...[...document.querySelectorAll('#log math *')].map((e) => e.getBoundingClientRect().height))") < 2000
    assert visited.page.evaluate("document.scrollingElement.scrollWidth") <= 1440


# The library takes well under this time in milliseconds. An endless loop would take the whole test's
# time. A run during which the browser did not get a CPU is repeated.
SLOWEST = 3000


def test_hostile_code_costs_little(server, visit):
    visited = visit(server)
    pieces = ["a", "\"", "'", "/*", "<", "<a ", "`${", "(", "\\", "#", "-- ", "a=", "{", "[a](", "\n", "  ", "$(", "r#\"", "<<EOF\n", "0x", ":"]
    took = visited.page.evaluate(
        """async ([pieces, languages, slowest]) => {
          const { default: Prism } = await import("./vendor/prism.js");
          const all = [];
          for (const language of languages) for (const piece of pieces) {
            const lines = piece.includes("\\n") ? piece.repeat(20000 / piece.length) : (piece.repeat(900 / piece.length) + "\\n").repeat(22);
            let took = Infinity;
            for (let run = 0; run < 3 && took >= slowest; run++) {
              const since = performance.now();
              Prism.tokenize(lines.slice(0, 20000), Prism.languages[language]);
              took = Math.min(took, performance.now() - since);
            }
            all.push([took, language, piece]);
          }
          return all.sort((a, b) => b[0] - a[0]).slice(0, 3);
        }""",
        [pieces, ["markup", "css", "javascript", "typescript", "python", "rust", "go", "java", "c", "cpp", "bash", "json", "yaml", "toml", "sql", "diff"], SLOWEST],
    )
    assert took[0][0] < SLOWEST, took


def test_what_is_finished_stays_while_more_comes(server, visit):
    visited = visit(server)
    visited.streams_slowly([{"content": text} for text in ["First one.\n\n", "Second one.\n\n", *["More and more. "] * 20, "\n\n- a\n\n", "- b\n\n", "```py\n", "x = 1\n", "```\n", "end"]], 25)
    visited.ask("Go on!")
    visited.page.get_by_text("Second one.").wait_for()
    visited.page.evaluate("window.first = [...document.querySelectorAll('.assistant p')].find((p) => p.textContent === 'First one.')")
    visited.wait_for_end()
    assert visited.page.evaluate("first.isConnected"), "what is selected in it stays selected"
    html = visited.page.locator(".assistant .content > .blocks").evaluate("(e) => [...e.children].map((child) => child.localName)")
    assert html == ["p", "p", "p", "ul", "figure", "p"]
    assert visited.page.locator(".assistant li").count() == 2


@pytest.mark.parametrize("usage", [0, 1, None])
def test_rates_are_never_negative(server, visit, usage):
    visited = visit(server)
    visited.streams_slowly([{"role": "assistant", "content": ""}, *([{"content": "x"}] if usage != 0 else [])], 90, usage)
    visited.ask("Nothing?")
    visited.wait_for_end()
    assert "-" not in visited.facts() and "NaN" not in visited.facts(), visited.facts()
    rate = re.search(r"(\S+) per second", visited.facts())
    if usage == 0:
        assert "first after" not in visited.facts() and rate is None, "there was no token"
    else:
        # The only token came after two pauses of 90 ms.
        assert 0 < float(rate[1]) < 1 / 0.18


def test_every_answer_has_a_rate(server, visit):
    visited = visit(server)
    visited.says("This ", "came ", "at once.")
    visited.ask("Quick?")
    visited.wait_for_end()
    visited.page.unroute_all()
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    facts = visited.page.locator(".facts").all_inner_texts()
    assert len(facts) == 2 and all(float(re.search(r"(\S+) per second", text)[1]) > 0 for text in facts), facts
    visited.page.reload()
    visited.page.wait_for_selector(".message")
    assert visited.page.locator(".facts").all_inner_texts() == facts


def test_long_lines_of_code_are_wrapped(server, visit):
    visited = visit(server, 768, 800)
    line = f"x = '{'word ' * 60}{'y' * 300}'"
    visited.streams([{"content": f"```python\n{line}\n```"}, {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": json.dumps({"x": "y" * 300})}}]}])
    visited.ask("Code!")
    visited.wait_for_end()
    wider = lambda: visited.page.evaluate("[...document.querySelectorAll('.assistant pre')].map((pre) => pre.scrollWidth > pre.clientWidth)")
    assert wider() == [False, False]
    assert visited.page.text_content(".assistant figure code") == line, "a copy has one line"
    wrap = visited.page.locator(".assistant").get_by_role("button", name="Wrap")
    assert wrap.get_attribute("aria-pressed") == "true"
    wrap.click()
    assert wider() == [True, True] and wrap.get_attribute("aria-pressed") == "false"
    assert visited.page.evaluate("document.scrollingElement.scrollWidth") <= 768, "the lines are scrolled in their place"
    visited.page.reload()
    visited.page.wait_for_selector(".assistant pre")
    assert wider() == [True, True], "the choice outlives a reload"
    visited.tab("Request")
    assert visited.page.locator("#view-request").get_by_role("button", name="Wrap").first.get_attribute("aria-pressed") == "false"


def test_nothing_moves_while_an_answer_comes(server, visit):
    visited = visit(server)
    visited.says("An answer.")
    visited.ask("First?")
    visited.wait_for_end()
    visited.page.evaluate(
        """() => {
          window.places = new Set();
          const note = () => places.add([".top", "#composer", "#draft", "#context", ".message"].map((name) => {
            const { left, top, width, height } = document.querySelector(name).getBoundingClientRect();
            return [name, left, top, width, height].join(" ");
          }).join(", "));
          note();
          new MutationObserver(note).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
        }"""
    )
    visited.page.unroute_all()
    visited.streams_slowly([{"reasoning_content": "Hm. "}] * 4 + [{"content": f"word{i} "} for i in range(12)], 20, 16)
    visited.ask("Second?")
    visited.wait_for_end()
    assert len(visited.page.evaluate("[...places]")) == 1, visited.page.evaluate("[...places]")


def test_counters_that_go_back(server, visit):
    visited = visit(server)
    visited.tab("Server")
    values = iter([1000.0, 400.0, "NaN", 500.0, 200.0])

    def answer(route):
        value = next(values, 300.0)
        names = ["tgi_request_time_to_first_token_duration_count", "tgi_request_inter_token_duration_count", "tgi_batch_forward_duration_count", "tgi_batch_forward_duration_sum"]
        route.fulfill(body="".join(f"{name} {value}\n" for name in names))

    visited.page.evaluate(
        """() => { window.seen = []; const note = () => seen.push(...[...document.querySelectorAll("#tiles dd")].map((e) => e.textContent));
             new MutationObserver(note).observe(document.getElementById("tiles"), { childList: true, subtree: true }); }"""
    )
    visited.page.route("**/metrics?*", answer)
    visited.until("seen.length > 6 * 7")
    assert [text for text in visited.page.evaluate("seen") if not re.fullmatch(r"\d+(\.\d+)?|–", text)] == []


def test_the_hint_about_tokens(server, visit):
    visited = visit(server)
    visited.page.check("#probabilities-wanted")
    visited.set("max_tokens", 5)
    visited.ask("What is 23 + 48?")
    visited.wait_for_end()
    hint = visited.page.locator(".token-hint")
    assert "Click a token" in hint.inner_text()
    visited.page.locator(".token").nth(1).click()
    assert visited.page.is_visible("#probabilities")
    visited.click("Got it")
    assert hint.count() == 0
    visited.click("Regenerate")
    visited.wait_for_end()
    assert visited.page.locator(".token").count() > 0 and hint.count() == 0
    visited.page.reload()
    visited.ask("And 1 + 1?")
    visited.wait_for_end()
    assert visited.page.locator(".token").count() > 0 and hint.count() == 0, "it is said once"
