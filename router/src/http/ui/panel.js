// The panel beside the conversation, with its tabs. On a narrow window it lies over the conversation.

import { byId } from "./dom.js";

const panel = byId("panel");
const button = byId("open-panel");
const tabs = [...panel.querySelectorAll("[role=tab]")];
const narrow = matchMedia("(max-width: 60rem)");

let shown = () => {};

/** Wires buttons and tabs; `changed` is called when something else is shown. */
export function openPanel(changed) {
  shown = changed;
  button.addEventListener("click", () => toggle(panel.hidden));
  byId("close-panel").addEventListener("click", () => toggle(false));
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(tab);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select(tabs[to % tabs.length]);
      tabs[to % tabs.length].focus();
    });
  }
  narrow.addEventListener("change", fit);
  fit();
}

/** On a narrow window it opens when asked. */
function fit() {
  panel.hidden = narrow.matches;
  button.setAttribute("aria-expanded", !panel.hidden);
}

function toggle(isOpen) {
  panel.hidden = !isOpen;
  button.setAttribute("aria-expanded", isOpen);
  shown();
  if (isOpen) tabs.find((tab) => tab.tabIndex === 0).focus();
  else button.focus();
}

/** Closes it if it covers the conversation; says whether it did. */
export function uncover() {
  const covers = narrow.matches && !panel.hidden;
  if (covers) toggle(false);
  return covers;
}

/** Shows a tab by its name, and the panel if it is closed. */
export function showTab(name) {
  if (panel.hidden) toggle(true);
  select(byId(`tab-${name}`));
}

function select(chosen) {
  for (const tab of tabs) {
    const isChosen = tab === chosen;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !isChosen;
  }
  shown();
}
