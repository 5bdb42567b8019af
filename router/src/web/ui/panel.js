// The panel and its tabs. In a narrow window it covers the conversation.

import { byId } from "./dom.js";

const panel = byId("panel");
const button = byId("open-panel");
const tabs = [...panel.querySelectorAll("[role=tab]")];
const narrow = matchMedia("(max-width: 60rem)");

let shown = () => {};

/** Connects the buttons and tabs. `changed` is called when another tab is shown. */
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

/** In a narrow window the panel is closed by default. */
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

/** Closes the panel if it covers the conversation, and returns whether it did. */
export function uncover() {
  const covers = narrow.matches && !panel.hidden;
  if (covers) toggle(false);
  return covers;
}

/** Shows the tab with this name, and opens the panel. */
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
