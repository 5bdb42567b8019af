// A hint about the tokens of an answer, shown until the user dismisses it.

import { byId, el, kept } from "./dom.js";

const memory = kept("localStorage", "millrace.token-hint");

/** The hint that tokens can be pointed at, or nothing after it was dismissed. */
export function tokenHint() {
  if (memory.get() === "read") return [];
  const dismiss = () => {
    memory.set("read");
    document.querySelectorAll(".token-hint").forEach((hint) => hint.remove());
    byId("draft").focus();
  };
  const text = "Click a token, or move over it with the arrow keys, to see which others the model considered.";
  return [el("p", { class: "token-hint" }, el("span", {}, text), el("button", { type: "button", class: "quiet", onclick: dismiss }, "Got it"))];
}
