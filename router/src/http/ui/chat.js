// The conversation: what was said, and how more is asked for.

import { ApiError, generate } from "./api.js";
import { byId, el, kept } from "./dom.js";
import { messageView } from "./message.js";

const memory = kept("sessionStorage", "millrace.chat");

/**
 * @param prepare turns the turns into a request, or returns null if the settings are wrong
 * @param hooks `key()`, `wantsTokens()`, `isPlain()`, `wantsKey()` if the server refused it, `changed()` after each change
 */
export function conversation(prepare, hooks) {
  const log = byId("log");
  const turns = memory.get() ?? [];
  let views = [];
  let running = null;

  const save = () => memory.set(turns.map(({ tokens, ...turn }) => turn));

  function draw() {
    const hadFocus = log.contains(document.activeElement);
    views = turns.map((turn) => messageView(turn, actions));
    log.replaceChildren(...views.map((view) => view.element));
    byId("empty").hidden = turns.length > 0;
    redraw();
    // What had it is no more; from here Tab leads on.
    if (hadFocus) log.focus();
    hooks.changed();
  }

  function redraw() {
    const last = turns.length - 1;
    views.forEach((view, index) => view.draw(running !== null && index === last, hooks.wantsTokens()));
  }

  function actions(turn) {
    if (running) return [];
    if (turn.role === "user") return [["Edit", () => edit(turn)]];
    if (turn !== turns.at(-1)) return [];
    const list = [[turn.error ? "Try again" : "Regenerate", () => regenerate()]];
    if (turn.content && turn.finish !== "stop") list.push(["Continue", () => answer(turn)]);
    return list;
  }

  function edit(turn) {
    const index = turns.indexOf(turn);
    views[index].edit((text) => {
      if (text === null || text.trim() === "") return draw();
      turn.content = text;
      turns.length = index + 1;
      draw();
      answer();
    });
  }

  function regenerate() {
    const before = turns.pop();
    if (answer()) return;
    turns.push(before);
    draw();
  }

  /** Adds a message and asks for the answer; false if it cannot be asked for. */
  function send(text) {
    if (running) return false;
    turns.push({ role: "user", content: text });
    if (answer()) return true;
    turns.pop();
    draw();
    return false;
  }

  /** Asks for an answer, or for more of this one. */
  function answer(begun = null) {
    const asked = prepare(turns);
    if (!asked) return false;
    const turn = begun ?? { role: "assistant", content: "", tokens: [], generated: 0 };
    Object.assign(turn, { finish: null, usage: null, error: null, firstAfter: null, plain: hooks.isPlain() });
    if (!begun) turns.push(turn);
    running = new AbortController();
    draw();
    announce("Answering");
    log.setAttribute("aria-busy", "true");
    scroll(true);
    stream(turn, asked, running.signal).finally(() => {
      running = null;
      log.removeAttribute("aria-busy");
      announce(turn.error ?? (turn.finish === "stopped" ? "Stopped" : "The answer is complete"));
      const follows = isAtEnd();
      draw();
      scroll(follows);
      save();
    });
    return true;
  }

  async function stream(turn, asked, signal) {
    const since = performance.now();
    const elapsed = () => (performance.now() - since) / 1000;
    const paint = painter(() => {
      if (!running) return;
      const follows = isAtEnd();
      views.at(-1)?.draw(true, hooks.wantsTokens());
      scroll(follows);
    });
    turn.generated = 0;
    try {
      for await (const part of generate(asked, hooks.key(), signal)) {
        if (part.usage) turn.usage = part.usage;
        else turn.generated += 1;
        turn.firstAfter ??= elapsed();
        turn.content += part.text;
        if (part.token) (turn.tokens ??= []).push({ shown: part.text, ...part.token });
        // Text held back until the answer's end comes with a token that is no text itself.
        else if (part.text && turn.tokens?.length) turn.tokens.at(-1).shown += part.text;
        turn.finish = part.finish ?? turn.finish;
        paint();
      }
    } catch (error) {
      turn.finish = signal.aborted ? "stopped" : "lost";
      if (signal.aborted) return;
      turn.error = error instanceof ApiError ? error.message : `The page has failed: ${error.message}`;
      if (error.status === 401) hooks.wantsKey();
    } finally {
      turn.seconds = elapsed();
    }
  }

  const isAtEnd = () => log.parentElement.scrollHeight - log.parentElement.scrollTop - log.parentElement.clientHeight < 80;
  const scroll = (follows) => {
    if (follows) log.parentElement.scrollTop = log.parentElement.scrollHeight;
  };

  return {
    send,
    redraw,
    draw,
    turns,
    stop: () => running?.abort(),
    isRunning: () => running !== null,
    clear() {
      running?.abort();
      turns.length = 0;
      save();
      draw();
    },
  };
}


/** Calls `draw` once per frame at most, however often it is called itself. */
function painter(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** Says something to those who do not see the page. */
function announce(text) {
  byId("announcer").replaceChildren(el("span", {}, text));
}
