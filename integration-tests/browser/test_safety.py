"""Tests that text of models and users is never interpreted as HTML."""

import urllib.error
import urllib.request

EVIL = """<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script><svg onload="window.hacked = 1">
[click](javascript:window.hacked=1) [data](data:text/html,<script>window.hacked=1</script>) ![picture](https://example.org/x.png)
**<b onclick="window.hacked = 1">bold</b>** `<i>` <https://example.org/>

| <u>cell</u> | </td> |
|---|---|
| <script>window.hacked = 1</script> | x |

```html"><img src=x onerror=window.hacked=1>
</code></pre><img src=x onerror="window.hacked = 1">
```"""


def test_nothing_becomes_html(server, visit):
    visited = visit(server)
    visited.says(*EVIL)
    for probabilities in [False, True]:
        visited.page.set_checked("#probabilities-wanted", probabilities)
        visited.ask(EVIL)
        visited.wait_for_end()
        visited.tab("Request")
    tags = visited.page.evaluate("[...new Set([...document.querySelectorAll('#log *')].map((element) => element.localName))]")
    assert not {"img", "script", "svg", "i", "u", "b"} & set(tags), tags
    links = visited.page.evaluate("[...document.querySelectorAll('#log a')].map((a) => [a.protocol, a.rel, a.target])")
    assert links and all(link == ["https:", "noopener noreferrer", "_blank"] for link in links)
    assert visited.page.text_content(".user .content") == EVIL
    assert '<img src=x onerror="window.hacked = 1">' in visited.page.text_content(".assistant .content")
    assert visited.page.evaluate("window.hacked") is None
    # The page's own scripts cannot do it either.
    refused = visited.page.evaluate(
        "async () => { const { el } = await import('./dom.js'); try { el('p').innerHTML = '<b>x</b>'; } catch (error) { return error.name; } }"
    )
    assert refused == "TypeError"
    visited.expected = ["policy: require-trusted-types-for", "TrustedHTML"]


MARKDOWN = [
    ("plain", "<p>plain</p>"),
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("# One\n### Three ##", "<h3>One</h3><h5>Three</h5>"),
    ("*a* **b** ***c*** ~~d~~ snake_case_name 2 * 3 * 4", None),
    ("`` a`b `` and \\*stars\\*", "<p><code>a`b</code> and *stars*</p>"),
    ("- a\n- b\n  - c\n\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
    ("- [ ] a **b**\n- [x] c\n  - [X] d\n- [y] e\n- [x]f", '<ul><li class="task"><input type="checkbox" disabled="" aria-label="To do"> a <strong>b</strong></li>'
     '<li class="task"><input type="checkbox" checked="" disabled="" aria-label="Done"> c'
     '<ul><li class="task"><input type="checkbox" checked="" disabled="" aria-label="Done"> d</li></ul></li><li>[y] e</li><li>[x]f</li></ul>'),
    ("1. [ ] a", '<ol start="1"><li class="task"><input type="checkbox" disabled="" aria-label="To do"> a</li></ol>'),
    ("3. a\n4. b\n\nc", '<ol start="3"><li>a</li><li>b</li></ol><p>c</p>'),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
    ("|a|b|\n|-|-|\n|1|2|", '<div class="wide" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
     "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>"),
    ("see https://a.example/x_y.", '<p>see <a href="https://a.example/x_y" target="_blank" rel="noopener noreferrer">'
     "https://a.example/x_y</a>.</p>"),
    ("**open `and [open](", "<p>**open `and [open](</p>"),
    ("It costs $5 or $6, and \\[this.", "<p>It costs $5 or $6, and [this.</p>"),
    ("so $a_1$ and \\(b\\)", '<p>so <code class="math" data-tex="a_1">$a_1$</code> and <code class="math" data-tex="b">\\(b\\)</code></p>'),
    ("$$\nx\n$$\ny", '<p><code class="math" data-tex="\nx\n" data-display="">$$\nx\n$$</code></p><p>y</p>'),
    ("<b>&amp;</b>", "<p>&lt;b&gt;&amp;amp;&lt;/b&gt;</p>"),
]


# The time of a text in units of a million loop iterations, the best of three each, so that slow
# and busy machines do not matter.
TURNS = """async (text) => {
  const { markdown } = await import("./markdown.js");
  const best = (work) => Math.min(...[1, 2, 3].map(() => {
    const since = performance.now();
    work();
    return performance.now() - since;
  }));
  let sum = 0;
  const loop = () => { for (let i = 0; i < 1e6; i++) sum = (sum * 31 + i) | 0; };
  return best(() => markdown(text)) / best(loop);
}"""


def test_markdown(server, visit):
    visited = visit(server)
    html = lambda text: visited.page.evaluate(
        "async (text) => { const { markdown } = await import('./markdown.js'); const { el } = await import('./dom.js'); "
        "return el('div', {}, markdown(text)).innerHTML; }", text)
    for text, expected in MARKDOWN:
        if expected is not None:
            assert html(text) == expected
    emphasis = html(MARKDOWN[3][0])
    assert "<em>a</em> <strong>b</strong>" in emphasis and "<del>d</del> snake_case_name 2 * 3 * 4" in emphasis
    # An open fence is already code. A later part of the stream may close it.
    assert '<code data-language="py">x = 1\n# y</code>' in html("```py\nx = 1\n# y")
    assert "<p>after</p>" in html("```\na\n```\nafter")
    # For all inputs, no text is lost and rendering is fast.
    for hostile in ["*" * 20000, "[" * 20000, "> " * 5000 + "x", "- " * 5000 + "x", "`" * 20001, "|" * 20000 + "\n" + "|-" * 9999, "a_" * 20000, "~~~\n" * 5000, "(" * 9000 + "https://" * 1000,
                    "$" * 20000, "$a " * 9000, "$$a\n" * 5000, "# h\n$$a\n" * 5000, "\\(" * 9000, "\\[a\n" * 5000]:
        took = visited.page.evaluate(TURNS, hostile)
        assert took < 50, (hostile[:10], took)


def test_the_page_can_be_left_out(start):
    server = start("--disable-ui")
    for path in ["/ui", "/ui/", "/ui/main.js"]:
        try:
            raise AssertionError(urllib.request.urlopen(server.url + path).status)
        except urllib.error.HTTPError as error:
            assert error.code == 404
