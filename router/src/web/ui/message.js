// The element of one turn of the conversation.

import { split } from "./answer.js";
import { count } from "./api.js";
import { copyButton, el } from "./dom.js";
import { enrich } from "./enrich.js";
import { tokenHint } from "./hint.js";
import { markdownView } from "./markdown.js";
import { callView, fileView, thinkingView } from "./parts.js";
import { speedOf } from "./rates.js";
import { tokenView } from "./tokens.js";

/** The name of a message, and the name that its buttons say. */
const ROLES = {
  user: { name: "You", noun: "message" },
  assistant: { name: "Answer", noun: "answer" },
  system: { name: "System prompt", noun: "system prompt" },
};

const ENDS = { length: "ended by its longest length", stopped: "stopped by you", lost: "incomplete" };

/**
 * Creates the element of a turn, and the function that updates it.
 *
 * @param hooks `actions(turn)`: buttons, `[[label, listener]]`; `versions(turn)`: `{ at, of,
 * step(by) }`; `answerCalls(turn)` requests an answer after the results of its calls, or is `null`
 * if the turn does not wait for results
 */
export function messageView(turn, hooks) {
  const content = el("div", { class: "content" });
  const foot = el("footer");
  const { name, noun } = ROLES[turn.role];
  const element = el("article", { class: `message ${turn.role}`, "aria-label": name }, content, foot);
  const body = turn.role === "assistant" ? answerBody(turn, content, hooks) : questionBody(turn, content);

  /** Updates the element. `isRunning` says that the turn is not complete. */
  function draw(isRunning, wantsTokens) {
    element.classList.toggle("running", isRunning);
    if (element.classList.contains("editing")) return;
    body(isRunning, wantsTokens);
    const buttons = isRunning ? [] : hooks.actions(turn).map(([label, onclick]) => el("button", { type: "button", class: "quiet", "aria-label": nameOf(label), onclick }, label));
    if (!isRunning && turn.content) buttons.unshift(copyButton(() => split(turn.content).text || turn.content));
    const told = isRunning || turn.role !== "assistant" ? [] : [el("span", { class: "facts" }, facts(turn))];
    foot.replaceChildren(...versionButtons(hooks.versions(turn), isRunning), ...buttons, ...told);
  }

  /** The buttons that change a message tell which kind of message. */
  const nameOf = (label) => (["Edit", "Delete"].includes(label) && turn.role !== "user" ? `${label} ${noun}` : null);

  /**
   * Shows a field in place of the text. `save(text)` changes the message, and `send(text)`, which
   * only questions have, asks another version of it.
   */
  function edit({ save, send, cancel }) {
    const field = el("textarea", { "aria-label": `Edit the ${noun}`, rows: "1" });
    field.value = turn.content;
    const end = (done) => {
      element.classList.remove("editing");
      done(field.value);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end(cancel);
      }
      // An answer has several lines, so Enter alone does not end it.
      const ends = event.key === "Enter" && !event.isComposing && (send ? !event.shiftKey : event.ctrlKey || event.metaKey);
      if (!ends) return;
      event.preventDefault();
      end(send ?? save);
    });
    const button = (label, done) => el("button", { type: "button", class: "quiet", onclick: () => end(done) }, label);
    element.classList.add("editing");
    content.replaceChildren(field);
    foot.replaceChildren(...(send ? [button("Send", send)] : []), button("Save", save), button("Cancel", cancel));
    field.focus();
  }

  /** Moves the focus to the button by which the user came to this version. */
  function focusVersion(by) {
    const buttons = [...foot.querySelectorAll(".versions button")];
    const wanted = buttons[by < 0 ? 0 : 1];
    (wanted?.disabled ? buttons.find((button) => !button.disabled) : wanted)?.focus();
  }

  return { element, draw, edit, focusVersion };
}

/** A question and its files, or the system prompt. */
function questionBody(turn, content) {
  const title = turn.role === "system" ? [el("p", { class: "about" }, "System prompt")] : [];
  return () => content.replaceChildren(...title, ...(turn.files ?? []).map(fileView), ...(turn.content ? [el("p", {}, turn.content)] : []));
}

/** The thinking, the text and the calls of an answer. Its elements stay in place while it grows. */
function answerBody(turn, content, hooks) {
  const thoughts = thinkingView();
  const text = el("div", { class: "blocks" });
  const rest = el("div", { class: "rest" });
  const draw = markdownView(text, enrich);
  let callsShown = null;
  let tokensShown = null;
  let isMarkdown = false;

  function drawCalls(calls, isRunning) {
    const answers = isRunning ? null : hooks.answerCalls(turn);
    const shown = JSON.stringify([calls, answers !== null]);
    if (shown === callsShown) return;
    const wasOpen = [...rest.querySelectorAll(".call")].map((call) => call.open);
    rest.replaceChildren(...calls.map((call, index) => callView(call, wasOpen[index] ?? true)));
    if (answers) rest.append(resultForm(turn.calls, answers));
    callsShown = shown;
  }

  function drawText(said, isRunning, wantsTokens) {
    if (wantsTokens && isCovered(turn)) {
      // Text may also be added to the last token.
      const shown = `${turn.tokens.length} ${turn.content.length}`;
      if (tokensShown !== shown) text.replaceChildren(tokenView(turn.tokens), ...tokenHint());
      tokensShown = shown;
      isMarkdown = false;
    } else if (turn.plain) {
      text.replaceChildren(el("p", {}, turn.content));
      isMarkdown = false;
      tokensShown = null;
    } else {
      // The previous content is removed, and the blocks are created again.
      if (!isMarkdown) {
        text.replaceChildren();
        draw("", true);
      }
      draw(said, !isRunning);
      isMarkdown = true;
      tokensShown = null;
    }
  }

  return (isRunning, wantsTokens) => {
    const parts = turn.plain ? { thinking: null, text: turn.content, calls: [] } : split(turn.content, isRunning);
    const thinking = turn.reasoning || parts.thinking;
    const isCounted = wantsTokens && isCovered(turn);
    const calls = isCounted ? (turn.calls ?? []) : [...(turn.calls ?? []), ...parts.calls];
    const isThinking = isRunning && (turn.reasoning ? turn.content === "" : parts.isThinking);
    // Models that may not think write empty thinking tags.
    const hasThoughts = !isCounted && (Boolean(thinking) || isThinking);
    if (hasThoughts) thoughts.draw(thinking, isThinking, turn.thinkingSeconds);
    drawText(parts.text, isRunning, wantsTokens);
    drawCalls(calls, isRunning);
    const error = turn.error ? [el("p", { class: "error", role: "alert" }, turn.error)] : [];
    const wanted = [...(hasThoughts ? [thoughts.element] : []), text, ...(calls.length ? [rest] : [])];
    content.querySelector(":scope > .error")?.remove();
    if (wanted.some((node, index) => content.childNodes[index] !== node) || content.childNodes.length !== wanted.length) content.replaceChildren(...wanted);
    content.append(...error);
  };
}

/** Fields for the results of the tools. */
function resultForm(calls, done) {
  const fields = calls.map(({ name }) => el("textarea", { rows: "2", class: "mono", spellcheck: "false", "aria-label": `Result of ${name}`, placeholder: `What ${name} returns` }));
  const submit = (event) => {
    event.preventDefault();
    calls.forEach((call, index) => (call.result = fields[index].value));
    done();
  };
  return el("form", { class: "results", onsubmit: submit }, ...fields, el("button", {}, count(calls.length, "result").replace(/^\d+ /, "Send ")));
}

/** Buttons `‹ 2/3 ›` if there are several versions. */
function versionButtons({ at, of, step }, isRunning) {
  if (of < 2) return [];
  const button = (by, label, sign) => el("button", { type: "button", class: "quiet", "aria-label": label, disabled: isRunning || at + by < 1 || at + by > of, onclick: () => step(by) }, sign);
  return [el("span", { class: "versions", role: "group", "aria-label": "Versions" },
    button(-1, "Previous version", "\u2039"), el("span", {}, `${at}/${of}`), button(1, "Next version", "\u203a"))];
}

/**
 * Returns whether the whole answer has probabilities. A part of it may have been requested without.
 */
const isCovered = ({ content, tokens }) => tokens?.length > 0 && tokens.map((token) => token.shown).join("") === content;

/** The length of the answer and its speed. */
function facts({ finish, usage, firstAfter, seconds, generated, earlier = 0, edited }) {
  const parts = [];
  const tokens = usage?.completion_tokens ?? generated ?? 0;
  if (tokens + earlier > 0) parts.push(count(tokens + earlier, "token"));
  const speed = speedOf(tokens, firstAfter, seconds);
  if (speed !== null) parts.push(`${speed.toFixed(speed < 100 ? 1 : 0)} per second`);
  if (firstAfter != null) parts.push(`first after ${Math.round(firstAfter * 1000)} ms`);
  if (ENDS[finish]) parts.push(ENDS[finish]);
  if (edited) parts.push("edited by you");
  return parts.join(" \u00b7 ");
}
