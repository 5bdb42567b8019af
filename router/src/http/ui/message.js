// One turn of the conversation as an element.

import { count } from "./api.js";
import { copyButton, el } from "./dom.js";
import { markdown } from "./markdown.js";
import { tokenView } from "./tokens.js";

const ENDS = { length: "ended by its longest length", stopped: "stopped by you", lost: "incomplete" };

/** The element of a turn, and how to draw it again. `actions`: buttons by name, `{ label: listener }`. */
export function messageView(turn, actions) {
  const content = el("div", { class: "content" });
  const foot = el("footer");
  const who = turn.role === "user" ? "You" : "Answer";
  const element = el("article", { class: `message ${turn.role}`, "aria-label": who }, content, foot);

  /** `isRunning`: more is to come. */
  function draw(isRunning, wantsTokens) {
    element.classList.toggle("running", isRunning);
    if (turn.role === "user") content.replaceChildren(el("p", {}, turn.content));
    else if (wantsTokens && isCovered(turn)) content.replaceChildren(tokenView(turn.tokens));
    else if (turn.plain) content.replaceChildren(el("p", {}, turn.content));
    else content.replaceChildren(markdown(turn.content));
    if (turn.error) content.append(el("p", { class: "error", role: "alert" }, turn.error));
    const buttons = isRunning ? [] : actions(turn).map(([label, onclick]) => el("button", { type: "button", class: "quiet", onclick }, label));
    if (!isRunning && turn.content) buttons.unshift(copyButton(() => turn.content));
    const told = isRunning || turn.role === "user" ? [] : [el("span", { class: "facts" }, facts(turn))];
    foot.replaceChildren(...buttons, ...told);
  }

  /** A field in place of the text; `done` gets the new text, or null. */
  function edit(done) {
    const field = el("textarea", { "aria-label": "Edit your message", rows: "1" });
    field.value = turn.content;
    const end = (text) => {
      element.classList.remove("editing");
      done(text);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        end(field.value);
      } else if (event.key === "Escape") {
        event.stopPropagation();
        end(null);
      }
    });
    element.classList.add("editing");
    content.replaceChildren(field);
    foot.replaceChildren(
      el("button", { type: "button", class: "quiet", onclick: () => end(field.value) }, "Send"),
      el("button", { type: "button", class: "quiet", onclick: () => end(null) }, "Cancel"),
    );
    field.focus();
  }

  return { element, draw, edit };
}

/** Whether there are probabilities for the whole answer: part of it may have been asked for without. */
const isCovered = ({ content, tokens }) => tokens?.length > 0 && tokens.map((token) => token.shown).join("") === content;

/** How long the answer is and how long it took. */
function facts({ finish, usage, firstAfter, seconds, generated }) {
  const parts = [];
  const tokens = usage?.completion_tokens ?? generated;
  if (tokens) parts.push(count(tokens, "token"));
  const speed = (tokens - 1) / (seconds - firstAfter);
  // What comes in one piece has no speed.
  if (seconds - firstAfter > 0.05) parts.push(`${speed.toFixed(speed < 100 ? 1 : 0)} per second`);
  if (firstAfter != null) parts.push(`first after ${Math.round(firstAfter * 1000)} ms`);
  if (ENDS[finish]) parts.push(ENDS[finish]);
  return parts.join(" \u00b7 ");
}
