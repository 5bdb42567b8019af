// Text files that go along with a message: chosen, dropped or pasted.

import { byId, el } from "./dom.js";

const KIB = 1024;

/** Bytes of one file, bytes of all of them, and how many a message takes. */
const MOST = { file: 512 * KIB, all: 1024 * KIB, files: 20 };

/** The text of a turn with its files in front, each in a fence with its name. */
export function withFiles({ content, files = [] }) {
  return [...files.map(fenced), content].filter((part) => part !== "").join("\n\n");
}

function fenced({ name, text }) {
  // A fence longer than every one in the file, so that none of them ends it.
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, ticks) => Math.max(most, ticks.length), 2);
  const fence = "`".repeat(longest + 1);
  const language = /\.([a-z0-9+#]{1,12})$/i.exec(name)?.[1].toLowerCase() ?? "";
  return `${name}:\n${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/** A name becomes part of the prompt: it stays on its line and ends no fence. */
function clean(name) {
  const safe = name.replace(/[\p{Cc}\p{Cf}`\u2028\u2029]+/gu, " ").trim().slice(0, 120);
  return safe || "file";
}

/** `1.5 MiB`. */
function size(bytes) {
  if (bytes < KIB) return `${bytes} bytes`;
  return bytes < KIB * KIB ? `${Math.ceil(bytes / KIB)} KiB` : `${(bytes / KIB / KIB).toFixed(1)} MiB`;
}

/** Wires the composer's button, drop and paste. `changed` is called when there are other files than before. */
export function attachments(changed) {
  let files = [];
  const input = byId("file-input");

  function draw() {
    byId("files").replaceChildren(...files.map((file) => {
      const remove = () => {
        files = files.filter((other) => other !== file);
        draw();
        byId("draft").focus();
      };
      const label = `Remove ${file.name}`;
      return el("li", {}, el("span", { class: "name" }, file.name), el("small", {}, size(file.bytes)),
        el("button", { type: "button", class: "quiet", "aria-label": label, onclick: remove }, "\u00d7"));
    }));
    byId("files").hidden = files.length === 0;
    changed();
  }

  const complain = (problems) => {
    byId("file-trouble").textContent = problems.join(" ");
    byId("file-trouble").hidden = problems.length === 0;
  };

  /** Takes what is text and not too much, and says why the rest was left out. */
  async function add(list) {
    const problems = [];
    for (const file of list) {
      const problem = await take(file);
      if (problem) problems.push(problem);
    }
    complain(problems.slice(0, 5));
    draw();
  }

  async function take(file) {
    const name = clean(file.name);
    if (files.length >= MOST.files) return `${name} was left out: a message takes ${MOST.files} files.`;
    if (file.size > MOST.file) return `${name} is too large: it has ${size(file.size)}, and a file may have ${size(MOST.file)}.`;
    const all = files.reduce((sum, { bytes }) => sum + bytes, file.size);
    if (all > MOST.all) return `${name} was left out: the files of a message may have ${size(MOST.all)} together.`;
    const text = await read(file);
    if (text === null) return `${name} was left out: it is not a text in UTF-8.`;
    files.push({ name, text, bytes: file.size });
    return null;
  }

  byId("attach").addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    await add([...input.files]);
    input.value = "";
    byId("draft").focus();
  });
  byId("draft").addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length === 0) return;
    event.preventDefault();
    add(pasted);
  });
  openDrop(add);
  return {
    /** The files that go with the next message. */
    files: () => files.map(({ name, text }) => ({ name, text })),
    clear() {
      files = [];
      complain([]);
      draw();
    },
  };
}

function openDrop(add) {
  const place = document.querySelector("main");
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (is) => place.classList.toggle("dropping", is);
  // Anywhere else on the page, a dropped file would replace the page.
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => hasFiles(event) && event.preventDefault());
  place.addEventListener("dragover", (event) => hasFiles(event) && mark(true));
  place.addEventListener("dragleave", (event) => !place.contains(event.relatedTarget) && mark(false));
  place.addEventListener("drop", (event) => {
    mark(false);
    if (hasFiles(event)) add([...event.dataTransfer.files]);
  });
}

/** The text of a file, or `null` if it is none. */
async function read(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n");
  } catch {
    return null;
  }
}
