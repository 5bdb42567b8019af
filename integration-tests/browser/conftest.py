"""Fixtures: a browser, a server with the demo model, and pages that check the rules of the UI."""

import json
import os
import tempfile
import urllib.request
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, sync_playwright
from server import PATIENCE, Server, wait_until

CHROMIUM = "/usr/bin/chromium"

# The browser's own services must not use the network, and rendering needs no GPU.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]


# Passes on the first events of the next answer one by one. Each waits until the previous one has
# changed the conversation.
ONE_BY_ONE = """(events) => {
  const log = document.getElementById("log");
  window.lengths = [];
  let drawn = () => {};
  new MutationObserver(() => {
    lengths.push(log.lastElementChild?.querySelector(".content").textContent.length);
    drawn();
  }).observe(log, { childList: true, subtree: true });
  const real = window.fetch;
  window.fetch = async (...asked) => {
    const response = await real(...asked);
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
    window.fetch = real;
    let rest = "";
    const slowly = new TransformStream({
      async transform(text, to) {
        const whole = (rest + text).split("\\n\\n");
        rest = whole.pop();
        for (const event of whole) {
          const change = new Promise((done) => (drawn = done));
          to.enqueue(event + "\\n\\n");
          if (event.startsWith("data: {") && events-- > 0) await change;
        }
      },
    });
    const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(slowly).pipeThrough(new TextEncoderStream());
    return new Response(body, { headers: response.headers });
  };
}"""

# Answers the next request with these events, each after a pause in milliseconds.
SLOWLY = """([events, pause]) => {
  const real = window.fetch;
  window.fetch = async (...asked) => {
    if (!String(asked[0]).includes("/v1/")) return real(...asked);
    window.fetch = real;
    const body = new ReadableStream({
      async start(to) {
        for (const event of events) {
          await new Promise((done) => setTimeout(done, pause));
          to.enqueue(`data: ${event}\\n\\n`);
        }
        to.close();
      },
    });
    return new Response(body.pipeThrough(new TextEncoderStream()), { headers: { "content-type": "text/event-stream" } });
  };
}"""


def pytest_addoption(parser):
    parser.addoption("--binary", required=True, help="the millrace binary to serve with")
    parser.addoption("--page", help="a folder whose files are served in place of the page in the binary")
    parser.addoption("--screenshots", help="a folder for pictures of the page")


@pytest.fixture(scope="session")
def binary(request):
    return os.path.abspath(request.config.getoption("--binary"))


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, env=environment)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(binary):
    server = Server(binary)
    yield server
    server.end()


@pytest.fixture
def start(binary):
    """Starts a server with its own flags for one test."""
    started = []

    def start(*flags: str) -> Server:
        started.append(Server(binary, *flags))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture
def visit(browser, request):
    """Opens the page of a server. At the end of the test, it checks that the page kept to the
    rules."""
    watched = []

    def visit(server: Server, width=1440, height=800, path="/ui/", **options) -> "Visit":
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **options)
        if folder := request.config.getoption("--page"):
            serve_from(folder, server, context)
        watched.append(Visit(context, server, path))
        return watched[-1]

    yield visit
    for visited in watched:
        visited.check()
        visited.page.context.close()


def serve_from(folder: str, server: Server, context):
    """Serves the files of the pages from a folder, with the headers of the server. The server
    writes the text of `/docs/` itself."""
    with urllib.request.urlopen(f"{server.url}/ui/") as page:
        policy = page.headers["content-security-policy"]
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    # The page about the API has files of its own beside some of the other page's.
    folders = {"ui": [folder], "docs": [os.path.join(folder, "../api_docs"), folder]}

    def answer(route):
        _, page, name = urlsplit(route.request.url).path.split("/", 2)
        name = name or ("index.html" if page == "ui" else "")
        kind = kinds.get(os.path.splitext(name)[1])
        path = next((path for place in folders[page] if os.path.isfile(path := os.path.join(place, name))), None)
        if kind is None or path is None:
            return route.continue_()
        with open(path, encoding="utf-8") as file:
            headers = {"content-type": f"{kind}; charset=utf-8", "content-security-policy": policy}
            return route.fulfill(body=file.read(), headers=headers)

    context.route(lambda url: urlsplit(url).path.startswith(("/ui/", "/docs/")), answer)


class Visit:
    """A page with helper methods for tests."""

    def __init__(self, context, server: Server, path: str):
        self.server, self.problems, self.asked, self.sent = server, [], [], []
        # Status codes that the test provokes. The browser writes them to the console by itself.
        self.expected = []
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective))"
        )
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.on("console", lambda message: message.type in ("error", "warning") and self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(server.url + path)
        if path != "/ui/":
            return
        self.until("document.getElementById('status').textContent === 'Ready'")
        self.until("document.getElementById('model').textContent !== ''")

    def _request(self, request):
        self.asked.append(request.url)
        if request.method == "POST":
            self.sent.append((urlsplit(request.url).path, json.loads(request.post_data)))

    def check(self):
        problems = [text for text in self.problems if not any(word in text for word in self.expected)]
        assert problems == []
        strangers = [url for url in self.asked if not url.startswith(self.server.url)]
        assert strangers == []

    def until(self, condition: str):
        """A replacement for Playwright's wait function, which needs `eval`. The page's policy
        forbids `eval`."""
        wait_until(lambda: self.page.evaluate(condition), condition)

    def ask(self, text: str):
        self.page.fill("#draft", text)
        self.page.press("#draft", "Enter")

    def wait_for_end(self):
        self.page.wait_for_selector(".message.assistant:last-child:not(.running)")

    def answer(self) -> str:
        return self.page.inner_text(".message.assistant:last-child .content")

    def facts(self) -> str:
        return self.page.inner_text(".message.assistant:last-child .facts")

    def click(self, name: str):
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def tab(self, name: str):
        if not self.page.is_visible("#panel"):
            self.click("Panel")
        self.page.get_by_role("tab", name=name).click()

    def set(self, name: str, value):
        self.tab("Settings")
        self.page.fill(f"#set-{name}", str(value))

    def one_by_one(self, events: int):
        """Passes this many events of the next answer to the page one by one, each after the
        previous one has been drawn. The page has to draw each event, however fast they arrive. The
        lengths of the answer are in `window.lengths`."""
        self.page.evaluate(ONE_BY_ONE, events)

    def begun(self, question: str):
        """Creates an answer that was cut at its maximum length and can be continued."""
        self.set("temperature", 0)
        self.set("max_tokens", 20)
        self.ask(question)
        self.wait_for_end()
        self.set("max_tokens", "")
        assert len(self.answer()) > 30

    def waits_for_more(self):
        """Requests the continuation of an answer while the shards are stopped, so that no event
        arrives."""
        with self.page.expect_response("**/v1/**"):
            self.click("Continue")
        assert self.page.inner_text("#go") == "Stop"

    def watch_for(self, text: str):
        """Records from here on whether the page ever shows this text. `has_shown` waits for it."""
        self.page.evaluate(
            """(text) => { window.shown = false;
               new MutationObserver(() => (shown ||= document.body.textContent.includes(text)))
                 .observe(document.body, { childList: true, subtree: true, characterData: true }); }""", text)

    def has_shown(self):
        self.until("shown")

    def says(self, *parts: str):
        """Makes every answer from here on consist of these parts, whatever the model generates."""
        self.streams([{"content": part} for part in parts])

    def streams(self, deltas: list[dict], reason="stop"):
        """Makes every answer from here on consist of these deltas of chunks."""
        body = "".join(f"data: {event}\n\n" for event in events(deltas, reason))
        self.page.route("**/v1/**", lambda route: route.fulfill(body=body, content_type="text/event-stream"))

    def streams_slowly(self, deltas: list[dict], pause: int, usage=None):
        """Makes the next answer consist of these deltas, each after a pause in milliseconds."""
        self.page.evaluate(SLOWLY, [events(deltas, "stop", usage), pause])

    def messages(self) -> list[str]:
        return self.page.locator(".message .content").all_inner_texts()

    def upload(self, button: str, *files: tuple[str, bytes]):
        """Presses this button and chooses files, given as `(name, content)`."""
        with self.page.expect_file_chooser() as chooser:
            self.click(button)
        chooser.value.set_files([{"name": name, "mimeType": "", "buffer": content} for name, content in files])

    def download(self, button: str) -> tuple[str, str]:
        """Presses this button and returns the name and the text of the file that it saves."""
        with self.page.expect_download() as saved:
            self.click(button)
        with open(saved.value.path(), encoding="utf-8") as file:
            return saved.value.suggested_filename, file.read()


def events(deltas: list[dict], reason: str, usage=None) -> list[str]:
    chunk = lambda delta, reason: {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    chunks = [chunk(delta, None) for delta in deltas] + [chunk({}, reason)]
    if usage is not None:
        chunks.append({"choices": [], "usage": {"completion_tokens": usage}})
    return [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
