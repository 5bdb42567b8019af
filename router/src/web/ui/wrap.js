// Whether long lines of code are wrapped, which holds for all code of the page.

import { el, kept } from "./dom.js";

const memory = kept("localStorage", "millrace.wrap");
const root = document.documentElement;

const wraps = () => root.dataset.wrap !== "off";

function show(isWrapped) {
  root.dataset.wrap = isWrapped ? "on" : "off";
  for (const button of document.querySelectorAll("button.wrap")) button.setAttribute("aria-pressed", isWrapped);
}

show(memory.get() ?? true);

/** Creates a button that turns the wrapping of lines on and off. */
export function wrapButton() {
  const toggle = () => {
    show(!wraps());
    memory.set(wraps());
  };
  return el("button", { type: "button", class: "quiet wrap", "aria-pressed": String(wraps()), onclick: toggle }, "Wrap");
}
