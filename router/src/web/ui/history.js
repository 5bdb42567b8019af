// The list of conversations.

import { count } from "./api.js";
import { byId, el } from "./dom.js";
import { side } from "./sides.js";
import { toast } from "./toast.js";
import { LARGEST_FILE, parse, toJson, toMarkdown } from "./transfer.js";
import { titleOf } from "./tree.js";

/**
 * Connects the list. `conversations` is a `library`, and `shown()` returns the conversation that is
 * shown. The returned `draw` updates the list. `uncover` closes the list if it covers the
 * conversation and returns whether it did.
 */
export function openHistory(conversations, shown) {
  let renamed = null;
  const list = byId("conversations");
  const { uncover } = side({ side: "history", open: "open-history", close: "close-history" }, { first: () => byId("search"), changed() {} });

  function draw() {
    // The list is not drawn while the user edits a title, and is drawn afterwards.
    if (renamed && list.querySelector("input")) return;
    const words = byId("search").value;
    const found = conversations.found(words);
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    const [id, name] = [focused?.closest("li").dataset.id, focused?.className];
    list.replaceChildren(...found.map(row));
    const stop = list.querySelector(".current .open") ?? list.querySelector(".open");
    if (stop) setStop(stop.closest("li"));
    if (id) [...list.children].find((item) => item.dataset.id === id)?.querySelector(`[class="${name}"]`)?.focus();
    byId("found").textContent = words.trim() ? count(found.length, "conversation") : found.length ? "" : "Conversations are kept in this browser and appear here.";
    const isEmpty = shown().turns.length === 0;
    for (const each of ["export-markdown", "export-json"]) byId(each).disabled = isEmpty;
    byId("export-all").disabled = conversations.found("").length === 0;
  }

  function row(conversation) {
    const title = titleOf(conversation);
    const isShown = conversation.id === shown().id;
    const item = el("li", { class: isShown ? "current" : false, "data-id": conversation.id });
    if (renamed === conversation) {
      item.append(nameField(conversation));
      return item;
    }
    const named = (label, className, onclick, sign) => el("button", { type: "button", class: className, "aria-label": `${label} ${title}`, title: label, tabindex: "-1", onclick }, sign);
    item.append(
      el("button", { type: "button", class: "open", "aria-current": isShown ? "true" : null, tabindex: "-1", onclick: () => open(conversation) }, title),
      named("Rename", "quiet rename", () => rename(conversation), "\u270e"),
      named("Delete", "quiet delete", () => remove(conversation), "\u00d7"),
    );
    return item;
  }

  function open(conversation) {
    conversations.open(conversation);
    if (uncover()) byId("draft").focus();
  }

  function rename(conversation) {
    renamed = conversation;
    draw();
    const field = list.querySelector("input");
    field?.focus();
    field?.select();
  }

  function nameField(conversation) {
    const field = el("input", { type: "text", maxlength: "200", "aria-label": "Name of the conversation" });
    field.value = titleOf(conversation);
    const end = (isKept, hasFocus) => {
      if (renamed !== conversation) return;
      renamed = null;
      if (isKept && field.value.trim() !== titleOf(conversation)) conversations.rename(conversation, field.value);
      draw();
      if (hasFocus) [...list.children].find((item) => item.dataset.id === conversation.id)?.querySelector(".open")?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter", true);
    });
    field.addEventListener("blur", () => end(true, false));
    return field;
  }

  function remove(conversation) {
    const wasShown = shown() === conversation;
    const at = [...list.children].findIndex((item) => item.dataset.id === conversation.id);
    conversations.remove(conversation);
    const next = list.children[Math.min(at, list.children.length - 1)];
    (next?.querySelector(".open") ?? byId("search")).focus();
    toast(`\u201c${titleOf(conversation)}\u201d was deleted.`, ["Undo", () => {
      conversations.restore(conversation);
      if (wasShown && shown().turns.length === 0) conversations.open(conversation);
      draw();
    }]);
  }

  /** Tab reaches one row, and arrow keys move to the others. */
  function setStop(item) {
    for (const each of list.querySelectorAll("button")) each.tabIndex = item.contains(each) ? 0 : -1;
  }

  list.addEventListener("keydown", (event) => {
    const items = [...list.children];
    const at = items.indexOf(event.target.closest("li"));
    if (at < 0 || event.target.tagName === "INPUT") return;
    const conversation = conversations.found(byId("search").value)[at];
    if (event.key === "F2") return rename(conversation);
    if (event.key === "Delete") return remove(conversation);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined || !items[to]) return;
    event.preventDefault();
    setStop(items[to]);
    items[to].querySelector(".open").focus();
  });
  byId("search").addEventListener("input", draw);
  wireFiles(conversations, shown, draw);
  return { draw, uncover };
}

function wireFiles(conversations, shown, draw) {
  const name = () => titleOf(shown()).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
  byId("export-markdown").addEventListener("click", () => save(`${name()}.md`, "text/markdown", toMarkdown(shown())));
  byId("export-json").addEventListener("click", () => save(`${name()}.json`, "application/json", toJson([shown()])));
  byId("export-all").addEventListener("click", () => save("millrace-conversations.json", "application/json", toJson(conversations.found(""))));
  const input = byId("import-input");
  byId("import").addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (!file) return;
    const trouble = byId("import-trouble");
    try {
      trouble.textContent = "";
      if (file.size > LARGEST_FILE) throw new Error(`This file is too large: ${LARGEST_FILE / 1024 / 1024} MiB are read at most.`);
      const { added, known, left } = await conversations.add(parse(await file.text()));
      const others = [known && `, ${known} known already`, left && `, ${left} left out`].filter(Boolean).join("");
      toast(`${count(added, "conversation")} imported${others}.`);
      draw();
    } catch (error) {
      trouble.textContent = error.message;
    }
    trouble.hidden = trouble.textContent === "";
    input.value = "";
  });
}

/** Lets the user download a file. */
function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
