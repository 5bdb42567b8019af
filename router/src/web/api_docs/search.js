// The search over routes, their fields and their descriptions.

import { byId, el } from "./dom.js";

/** The most fields that a folded route names as the place of the searched words. */
const MAX_HITS = 4;

/** Connects the field of the search. Without a text all routes are shown. */
export function openSearch() {
  const field = byId("search");
  byId("find").hidden = false;
  const parts = [...document.querySelectorAll("main details.route")].map(partOf);
  const links = [...document.querySelectorAll("#contents li a")].map((link) => [link, link.hash.slice(1)]);
  const groups = [...document.querySelectorAll("main section")];
  const titles = groups.map((group) => group.querySelector("h2").textContent.toLowerCase());

  function search() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = new Set();
    for (const part of parts) {
      const title = titles[groups.indexOf(part.element.parentElement)];
      const isFound = words.every((word) => title.includes(word) || part.text.includes(word));
      part.element.hidden = !isFound;
      if (isFound) shown.add(part.element.id);
      mark(part, words);
    }
    for (const group of groups) group.hidden = !group.querySelector("details.route:not([hidden])");
    for (const [link, id] of links) link.parentElement.hidden = !shown.has(id);
    for (const list of document.querySelectorAll("#contents > div:has(ul)")) list.hidden = !list.querySelector("li:not([hidden])");
    byId("nothing").hidden = shown.size > 0;
    byId("found").textContent = words.length ? `${shown.size} of ${parts.length} routes and types` : "";
  }

  field.addEventListener("input", () => {
    search();
    scrollTo(0, 0);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || field.value === "") return;
    event.preventDefault();
    field.value = "";
    search();
  });
  addEventListener("keydown", (event) => {
    const writes = event.target.closest?.("input, textarea, select");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || writes) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
  // The browser keeps the text of the field over a reload.
  search();
}

/** The searched text of a route, and its fields. */
function partOf(element) {
  const fields = [...element.querySelectorAll("tr:has(td:first-child code)")].map((row) => ({ row, name: row.querySelector("code").textContent, text: row.textContent.toLowerCase() }));
  const hits = el("span", { class: "hits" });
  element.querySelector("summary").append(hits);
  return { element, hits, fields, title: element.querySelector("summary").textContent.toLowerCase(), text: element.textContent.toLowerCase() };
}

/** Marks the fields with the searched words, and names them beside the title if they decide. */
function mark({ hits, fields, title }, words) {
  const inFields = words.filter((word) => !title.includes(word));
  const found = fields.filter(({ text }) => inFields.some((word) => text.includes(word)));
  for (const { row } of fields) row.classList.remove("hit");
  for (const { row } of found) row.classList.add("hit");
  const names = [...new Set(found.map(({ name }) => name))];
  const more = names.length > MAX_HITS ? [` and ${names.length - MAX_HITS} more`] : [];
  hits.replaceChildren(...names.slice(0, MAX_HITS).map((name) => el("code", {}, name)), ...more);
}
