// Text files that are attached to a message: chosen, dropped or pasted.

import { byId, el } from "./dom.js";

const KIB = 1024;

/** Limits of a message: bytes of one file, bytes of all files, and the number of files. */
const LIMITS = { file: 512 * KIB, all: 1024 * KIB, files: 20 };

/** The text of a turn, with its files before it, each in a fence with its name. */
export function withFiles({ content, files = [] }) {
  return [...files.map(fenced), content].filter((part) => part !== "").join("\n\n");
}

function fenced({ name, text }) {
  // The fence is longer than every fence in the file, so that none of those ends it.
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, ticks) => Math.max(most, ticks.length), 2);
  const fence = "`".repeat(longest + 1);
  const language = /\.([a-z0-9+#]{1,12})$/i.exec(name)?.[1].toLowerCase() ?? "";
  return `${name}:\n${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/** A name in a form that stays on its line of the prompt and does not end a fence. */
function clean(name) {
  const safe = name.replace(/[\p{Cc}\p{Cf}`\u2028\u2029]+/gu, " ").trim().slice(0, 120);
  return safe || "file";
}

/** Formats a size: `1.5 MiB`. */
function size(bytes) {
  if (bytes < KIB) return `${bytes} bytes`;
  return bytes < KIB * KIB ? `${Math.ceil(bytes / KIB)} KiB` : `${(bytes / KIB / KIB).toFixed(1)} MiB`;
}

/**
 * Connects the button, drop and paste of the composer. `changed` is called when the files change.
 */
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

  /** Adds the files that are text and within the limits, and shows why the others were left out. */
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
    if (files.length >= LIMITS.files) return `${name} was left out: a message takes ${LIMITS.files} files.`;
    if (file.size > LIMITS.file) return `${name} is too large: it has ${size(file.size)}, and a file may have ${size(LIMITS.file)}.`;
    const all = files.reduce((sum, { bytes }) => sum + bytes, file.size);
    if (all > LIMITS.all) return `${name} was left out: the files of a message may have ${size(LIMITS.all)} together.`;
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
    /** The files of the next message. */
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
  // By default, a file that is dropped elsewhere replaces the page.
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => hasFiles(event) && event.preventDefault());
  place.addEventListener("dragover", (event) => hasFiles(event) && mark(true));
  place.addEventListener("dragleave", (event) => !place.contains(event.relatedTarget) && mark(false));
  place.addEventListener("drop", (event) => {
    mark(false);
    if (hasFiles(event)) add([...event.dataTransfer.files]);
  });
}

/** The text of a file, or `null` if the file is not text. */
async function read(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n");
  } catch {
    return null;
  }
}
