// The parts of a turn that can be folded: thinking, tool calls, and files.

import { el } from "./dom.js";
import { enrich } from "./enrich.js";
import { markdownView } from "./markdown.js";

/**
 * Creates the element of an answer's thinking, and the function that updates it. An open element
 * stays open.
 */
export function thinkingView() {
  const title = el("summary");
  const text = el("div", { class: "blocks" });
  const element = el("details", { class: "thinking" }, title, text);
  const draw = markdownView(text, enrich);
  return {
    element,
    /**
     * `seconds` is the duration, if it is known. `isThinking` says that the thinking has not ended.
     */
    draw(thinking, isThinking, seconds) {
      element.classList.toggle("busy", isThinking);
      const told = title.textContent;
      const tells = isThinking ? "Thinking\u2026" : seconds >= 0 ? `Thought for ${duration(seconds)}` : "Thoughts";
      if (told !== tells) title.textContent = tells;
      draw(thinking, !isThinking);
    },
  };
}

function duration(seconds) {
  if (seconds < 0.1) return "a moment";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/**
 * Creates the element of a tool call. `submit(result)`, if given, is called with the result that
 * the user enters.
 */
export function callView({ name, arguments: values, result }, isOpen) {
  const text = el("code", { "data-language": "json" }, pretty(values));
  const inner = [el("pre", { tabindex: "0", "aria-label": `Arguments of ${name}` }, text)];
  if (result != null) inner.push(el("p", { class: "about" }, "Its result"), el("pre", { tabindex: "0", "aria-label": `Result of ${name}` }, el("code", {}, result)));
  const element = el("details", { class: "call", open: isOpen }, el("summary", {}, "Call of ", el("code", {}, name)), ...inner);
  enrich(element);
  return element;
}

/** Formats arguments, which are not valid JSON before they are complete. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Creates the element of an attached file. */
export function fileView({ name, text }) {
  return el("details", { class: "file" }, el("summary", {}, name), el("pre", { tabindex: "0", "aria-label": name }, el("code", {}, text)));
}
