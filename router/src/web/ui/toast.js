// A short message at the bottom of the page, with one action.

import { byId, el } from "./dom.js";

/** The duration of a message in milliseconds. It stays while it is hovered or focused. */
const SHOWN_FOR = 12_000;

let timer = 0;

/** Shows `text` instead of the last message. `action` is `[label, listener]`. */
export function toast(text, action = null) {
  const box = byId("toast");
  clearTimeout(timer);
  const act = () => {
    hide();
    action[1]();
  };
  box.replaceChildren(...[
    el("span", {}, text),
    action && el("button", { type: "button", onclick: act }, action[0]),
    el("button", { type: "button", class: "quiet", onclick: hide }, "Dismiss"),
  ].filter(Boolean));
  box.hidden = false;
  // Screen readers do not announce a region that was hidden when its text changed.
  byId("announcer").replaceChildren(el("span", {}, text));
  box.onpointerenter = box.onfocusin = () => clearTimeout(timer);
  box.onpointerleave = box.onfocusout = wait;
  wait();
}

function wait() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (!byId("toast").matches(":hover, :focus-within")) hide();
  }, SHOWN_FOR);
}

function hide() {
  clearTimeout(timer);
  byId("toast").hidden = true;
}
