// The conversation that is shown, and the requests for answers.

import { thinkingClock } from "./answer.js";
import { ApiError, generate } from "./api.js";
import { byId, el } from "./dom.js";
import { messageView } from "./message.js";
import { toast } from "./toast.js";
import { after, append, before, choose, newConversation, path, remove, versions } from "./tree.js";

/**
 * @param prepare returns a request for turns, or null if the settings are invalid
 * @param hooks `key()`, `wantsTokens()`, `isPlain()`, `wantsKey()` if the server refused the key,
 * `changed()` after each change, `keep(conversation)` when the conversation should be saved,
 * `system()` returns the system prompt and `setSystem(text)` changes it
 */
export function chatView(prepare, hooks) {
  const log = byId("log");
  const views = new WeakMap();
  let current = newConversation();
  let running = null;
  // The system prompt is a setting. It is shown as the first message and is not in the tree.
  const system = { role: "system", content: "" };

  const isRunning = (turn) => running?.turn === turn;
  const shown = () => path(current);

  function viewOf(turn) {
    if (!views.has(turn)) views.set(turn, messageView(turn, { actions, versions: versionsOf, answerCalls }));
    return views.get(turn);
  }

  function draw() {
    const focused = log.contains(document.activeElement) ? document.activeElement : null;
    const turns = shown();
    system.content = hooks.system();
    const listed = turns.length && system.content ? [system, ...turns] : turns;
    const elements = listed.map((turn) => viewOf(turn).element);
    // Existing elements stay, since they may be open, selected or scrolled.
    while (log.lastChild && !elements.includes(log.lastChild)) log.lastChild.remove();
    elements.forEach((element, index) => {
      if (log.children[index] !== element) log.insertBefore(element, log.children[index] ?? null);
    });
    while (log.children.length > elements.length) log.lastChild.remove();
    byId("empty").hidden = turns.length > 0;
    redraw();
    // The focused element is gone. Focus moves here, so that Tab continues from this place.
    if (focused && !focused.isConnected) log.focus();
    hooks.changed();
  }

  function redraw() {
    for (const turn of [system, ...shown()]) viewOf(turn).draw(isRunning(turn), hooks.wantsTokens());
  }

  function actions(turn) {
    if (running) return [];
    const change = [["Edit", () => edit(turn)], ["Delete", () => erase(turn)]];
    if (turn.role !== "assistant") return change;
    const canContinue = turn === shown().at(-1) && turn.content && (turn.finish !== "stop" || turn.edited) && !turn.calls;
    return [
      [turn.error ? "Try again" : "Regenerate", () => regenerate(turn)],
      ...(canContinue ? [["Continue", () => answer(shown(), turn)]] : []),
      ...change,
    ];
  }

  function versionsOf(turn) {
    const all = versions(current, turn);
    const at = all.indexOf(turn);
    const step = (by) => {
      const other = all[at + by];
      if (running || !other) return;
      choose(current, other);
      draw();
      viewOf(other).focusVersion(by);
      hooks.keep(current);
    };
    return { at: at + 1, of: all.length, step };
  }

  /** The function that sends the results of a turn's calls, if the turn waits for them. */
  function answerCalls(turn) {
    if (running || !turn.calls?.length || turn !== shown().at(-1) || turn.error) return null;
    return () => answer(shown());
  }

  function edit(turn) {
    const send = (text) => {
      const changed = { role: "user", content: text, ...(turn.files ? { files: turn.files } : {}) };
      const isEmpty = text.trim() === "" && !turn.files;
      const asked = isEmpty ? null : prepare([...before(current, turn), changed]);
      if (!asked) return draw();
      append(current, before(current, turn).at(-1) ?? null, changed);
      start(asked);
    };
    viewOf(turn).edit({ cancel: draw, save: (text) => save(turn, text), ...(turn.role === "user" ? { send } : {}) });
  }

  /** Changes the text of a message in its place. */
  function save(turn, text) {
    if (turn === system) {
      hooks.setSystem(text.trim());
      return draw();
    }
    const hasOther = turn.files?.length || turn.calls?.length || turn.reasoning;
    if (text === turn.content || (text.trim() === "" && !hasOther)) return draw();
    turn.content = text;
    if (turn.role === "assistant") {
      turn.edited = true;
      delete turn.tokens;
    }
    forgetContext([turn, ...after(current, turn)]);
    store(current);
  }

  /** Deletes one message. The messages after it stay. */
  function erase(turn) {
    if (turn === system) {
      const { content } = system;
      hooks.setSystem("");
      draw();
      toast("The system prompt was deleted.", ["Undo", () => (hooks.setSystem(content), draw())]);
      return log.focus();
    }
    const conversation = current;
    const following = after(conversation, turn);
    const counts = following.map(({ usage }) => usage);
    const putBack = remove(conversation, turn);
    forgetContext(following);
    store(conversation);
    log.focus();
    toast(turn.role === "user" ? "The message was deleted." : "The answer was deleted.", ["Undo", () => {
      // Another window may have replaced the conversation meanwhile.
      const isReplaced = current.id === conversation.id && current !== conversation;
      if (isReplaced || running || !putBack()) return;
      following.forEach((other, index) => (other.usage = counts[index]));
      store(conversation);
    }]);
  }

  function store(conversation) {
    conversation.updated = Date.now();
    if (conversation === current) draw();
    hooks.keep(conversation);
  }

  /** Requests another version of an answer. An empty version is replaced. */
  function regenerate(turn) {
    const asked = prepare(before(current, turn));
    if (!asked) return;
    const isEmpty = turn.content === "" && !turn.reasoning && !turn.calls;
    if (isEmpty) start(asked, turn);
    else start(asked, append(current, before(current, turn).at(-1) ?? null, newAnswer()));
  }

  /** Adds a message and requests the answer. Returns false if the request cannot be sent. */
  function send(text, files = []) {
    if (running) return false;
    const turn = { role: "user", content: text, ...(files.length ? { files } : {}) };
    const asked = prepare([...shown(), turn]);
    if (!asked) return false;
    append(current, shown().at(-1) ?? null, turn);
    start(asked);
    return true;
  }

  /** Requests an answer after these turns, or the continuation of the last one. */
  function answer(turns, begun = null) {
    const asked = prepare(turns);
    if (asked) start(asked, begun);
  }

  function start(asked, begun = null) {
    const turn = begun ?? append(current, shown().at(-1) ?? null, newAnswer());
    const conversation = current;
    // The length of a continued answer is the sum of its pieces.
    const earlier = turn.content ? (turn.earlier ?? 0) + (turn.usage?.completion_tokens ?? turn.generated ?? 0) : 0;
    Object.assign(turn, { finish: null, usage: null, error: null, firstAfter: null, generated: 0, earlier, plain: hooks.isPlain() });
    const control = new AbortController();
    running = { turn, stop: () => control.abort() };
    conversation.updated = Date.now();
    hooks.keep(conversation);
    draw();
    announce("Answering");
    log.setAttribute("aria-busy", "true");
    scroll(true);
    stream(turn, asked, control.signal, () => hooks.keep(conversation)).finally(() => {
      if (isRunning(turn)) running = null;
      if (conversation === current) {
        log.removeAttribute("aria-busy");
        announce(turn.error ?? (turn.finish === "stopped" ? "Stopped" : "The answer is complete"));
        const follows = isAtEnd();
        draw();
        scroll(follows);
      }
      conversation.updated = Date.now();
      hooks.keep(conversation);
    });
  }

  async function stream(turn, asked, signal, keep) {
    const since = performance.now();
    let kept = 0;
    const elapsed = () => (performance.now() - since) / 1000;
    const think = thinkingClock(turn);
    const paint = painter(() => {
      if (!isRunning(turn)) return;
      const follows = isAtEnd();
      viewOf(turn).draw(true, hooks.wantsTokens());
      scroll(follows);
    });
    try {
      for await (const part of generate(asked, hooks.key(), signal)) {
        take(turn, part, elapsed());
        think(elapsed());
        paint();
        // If the page is closed now, only the text since the last save is lost.
        if (elapsed() - kept > KEPT_EVERY) {
          kept = elapsed();
          turn.seconds = kept;
          keep();
        }
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
    /** Shows the system prompt of the settings, if it has changed. */
    fitSystem() {
      if (hooks.system() !== system.content) draw();
    },
    turns: shown,
    conversation: () => current,
    stop: () => running?.stop(),
    isRunning: () => running !== null,
    /** Shows another conversation. A running answer is stopped, and its text so far is saved. */
    show(conversation) {
      running?.stop();
      running = null;
      log.removeAttribute("aria-busy");
      current = conversation;
      log.replaceChildren();
      draw();
      scroll(true);
    },
  };
}

/** Seconds between saves of a running answer. */
const KEPT_EVERY = 2;

const newAnswer = () => ({ role: "assistant", content: "", tokens: [], generated: 0 });

/** Forgets how many tokens the prompts of answers had, since they would have others now. */
function forgetContext(turns) {
  for (const turn of turns) if (turn.usage) turn.usage = { completion_tokens: turn.usage.completion_tokens };
}

/** Adds a piece of an answer, `seconds` after the request. */
function take(turn, part, seconds) {
  if (part.usage) turn.usage = part.usage;
  turn.finish = part.finish ?? turn.finish;
  // A piece that has only a role, a finish reason or a count is not a token.
  if (!part.text && !part.token && !part.reasoning && part.calls.length === 0) return;
  turn.generated += 1;
  turn.firstAfter ??= seconds;
  turn.content += part.text;
  if (part.reasoning) turn.reasoning = (turn.reasoning ?? "") + part.reasoning;
  for (const piece of part.calls) addCall((turn.calls ??= []), piece);
  if (part.token) (turn.tokens ??= []).push({ shown: part.text, ...part.token });
  // Text that was held back until the end comes with a token that has no text itself.
  else if (part.text && turn.tokens?.length) turn.tokens.at(-1).shown += part.text;
}

/** Adds pieces of calls: first the name, then the arguments. */
function addCall(calls, { index, id, name, values }) {
  if (!Number.isInteger(index) || index < 0 || index > calls.length) return;
  const call = (calls[index] ??= { id: "", name: "", arguments: "" });
  call.id += id;
  call.name += name;
  call.arguments += values;
}

/** Returns a function that calls `draw` at most once per frame. */
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

/** Announces a text to screen readers. */
function announce(text) {
  byId("announcer").replaceChildren(el("span", {}, text));
}
