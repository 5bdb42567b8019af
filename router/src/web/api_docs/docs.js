// Connects the parts of the page about the API: the search, the links, and the forms.

import { byId, kept } from "./dom.js";
import { openSearch } from "./search.js";
import { tryForm } from "./try.js";

/** The key is shared with the page `/ui`, and is forgotten when the window is closed. */
const keyMemory = kept("sessionStorage", "millrace.key");

const keyField = byId("key");

/** Opens the part of the page that the address names, which may be folded. */
function openTarget() {
  const target = location.hash.length > 1 ? byId(decodeURIComponent(location.hash.slice(1))) : null;
  if (!target) return;
  if (target.localName === "details") target.open = true;
  target.scrollIntoView();
}

/** Adds the form of a route when the route is opened for the first time. */
function addForm(event) {
  const route = event.target;
  if (!route.open || !route.dataset?.method || route.querySelector(".try")) return;
  route.querySelector(".more").append(tryForm(route, () => keyField?.value.trim() ?? ""));
}

if (keyField) {
  byId("key-row").hidden = false;
  keyField.value = keyMemory.get() ?? "";
  keyField.addEventListener("input", () => keyMemory.set(keyField.value.trim()));
}
// The event does not bubble.
document.addEventListener("toggle", addForm, true);
addEventListener("hashchange", openTarget);
// A link to the part that the address names already changes nothing in the address.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#']");
  if (link && link.hash === location.hash) openTarget();
});
openSearch();
openTarget();
