// Shows an answer as its tokens, shaded by their probability. The alternatives of a token are shown
// when the user hovers over it, taps it or moves to it with the arrow keys.

import { byId, el } from "./dom.js";

const percent = (logprob) => {
  const share = Math.exp(logprob) * 100;
  if (share >= 99.95) return "100 %";
  return share < 0.1 ? "< 0.1 %" : `${share.toFixed(1)} %`;
};

/** Returns the shade: 0 for a token that was almost certain, 4 for a very unlikely one. */
const doubt = (logprob) => [0.9, 0.6, 0.3, 0.1].filter((bound) => Math.exp(logprob) < bound).length;

/** Makes white space visible. */
const visible = (text) => text.replaceAll(" ", "\u00b7").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5") || "(nothing)";

/**
 * Creates the elements of `tokens`, `[{ shown, text, logprob, top }]`, where `shown` is the text in
 * the answer.
 */
export function tokenView(tokens) {
  hide();
  const spans = tokens.map((token, index) =>
    el("span", { class: `token doubt-${doubt(token.logprob)}`, "data-index": index, tabindex: index ? "-1" : "0" }, token.shown),
  );
  const label = "The answer's tokens. Arrow keys move between them";
  const view = el("div", { class: "tokens", role: "group", "aria-label": label }, ...spans);
  const at = (event) => event.target.closest?.(".token");
  const on = (name, action) => view.addEventListener(name, (event) => {
    const span = at(event);
    if (span) action(span, event);
  });
  const open = (span) => show(span, tokens[Number(span.dataset.index)]);
  on("pointerover", open);
  on("focusin", open);
  view.addEventListener("pointerleave", hide);
  view.addEventListener("focusout", hide);
  on("click", (span) => span.focus());
  on("keydown", (span, event) => {
    const index = Number(span.dataset.index);
    const to = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: spans.length - 1 };
    const next = spans[to[event.key]];
    if (!next) return;
    event.preventDefault();
    span.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return view;
}

function show(span, token) {
  const rows = [{ text: token.text, logprob: token.logprob, chosen: true }];
  for (const { text, logprob } of token.top) {
    if (text !== token.text) rows.push({ text, logprob, chosen: false });
  }
  rows.sort((a, b) => b.logprob - a.logprob);
  const box = byId("probabilities");
  box.replaceChildren(...rows.map(({ text, logprob, chosen }) => {
    const bar = el("span", { class: "bar" });
    bar.style.setProperty("--share", Math.exp(logprob));
    return el("div", { class: chosen ? "chosen" : false }, el("code", {}, visible(text)), bar, el("span", {}, percent(logprob)));
  }));
  box.hidden = false;
  span.setAttribute("aria-describedby", box.id);
  const [place, size] = [span.getClientRects()[0] ?? span.getBoundingClientRect(), box.getBoundingClientRect()];
  const below = place.bottom + 6;
  const above = place.top - size.height - 6;
  box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - size.width - 8))}px`;
  box.style.top = `${below + size.height > innerHeight && above > 0 ? above : below}px`;
}

/** Hides the alternatives. */
function hide() {
  byId("probabilities").hidden = true;
}
