// The panel and its tabs.

import { byId } from "./dom.js";
import { side } from "./sides.js";

const tabs = [...byId("panel").querySelectorAll("[role=tab]")];

let shown = () => {};

const panel = side({ side: "panel", open: "open-panel", close: "close-panel" }, {
  first: () => tabs.find((tab) => tab.tabIndex === 0),
  changed: () => shown(),
});

/** Connects the tabs. `changed` is called when another tab is shown. */
export function openPanel(changed) {
  shown = changed;
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
}

/** Closes the panel if it covers the conversation, and returns whether it did. */
export const uncover = () => panel.uncover();

/** Shows the tab with this name, and opens the panel. */
export function showTab(name) {
  panel.open();
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
