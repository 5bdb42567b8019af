// Renders Markdown as nodes. Syntax that is not supported stays plain text, and so does HTML.

import { copyButton, el } from "./dom.js";
import { wrapButton } from "./wrap.js";

/** Returns a fragment with the blocks of a text. */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  appendBlocks(linesOf(text), fragment, 0);
  return fragment;
}

/**
 * Renders a growing text into `place`. The returned function takes the text so far and whether it
 * is complete. Blocks that cannot change any more keep their nodes, and with them the user's
 * selection. `finished(node)` is called once for each of them.
 */
export function markdownView(place, finished) {
  let shown = [];
  let kept = "";
  return (text, isWhole) => {
    const lines = linesOf(text);
    const whole = lines.join("\n");
    // The next line may still merge the last block with the one before it.
    let keep = Math.max(0, shown.length - 2);
    if (!whole.startsWith(kept)) keep = 0;
    const from = keep > 0 ? shown[keep - 1].end : 0;
    const blocks = [...scan(lines, from, 0)];
    const fresh = blocks.map(({ from, end, build }, index) => {
      const source = lines.slice(from, end).join("\n");
      const isFinished = isWhole || index < blocks.length - 1;
      const old = shown[keep + index];
      if (old?.source === source && old.isFinished === isFinished) return { ...old, end };
      const node = build();
      if (old) old.node.replaceWith(node);
      else place.append(node);
      if (isFinished) finished(node);
      return { source, isFinished, node, end };
    });
    for (const { node } of shown.slice(keep + fresh.length)) node.remove();
    shown = [...shown.slice(0, keep), ...fresh];
    kept = shown.length > 2 ? lines.slice(0, shown.at(-3).end).join("\n") : "";
  };
}

/** The deepest nesting of quotes and lists. Deeper ones are shown as plain text. */
const DEEPEST = 6;

const FENCE = /^ {0,3}(```+|~~~+) *([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;
const TASK = /^\[([ xX])\](?: +|$)/;
const DIVIDER = /^ *\|?(?: *:?-+:? *\|)+ *(?::?-+:? *)?$/;
const FORMULA = /^ {0,3}(\$\$|\\\[)/;

const linesOf = (text) => text.replaceAll("\r\n", "\n").split("\n");
const isBlank = (line) => line.trim() === "";
const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(line));

function appendBlocks(lines, to, depth) {
  for (const { build } of scan(lines, 0, depth)) to.append(build());
}

/**
 * Returns the blocks from line `at` on: `{ from, end, build }`, where `build` creates the node of
 * the block.
 */
function* scan(lines, at, depth) {
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, depth);
    yield { from: at, ...block };
    at = block.end;
  }
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  let found;
  if ((found = FENCE.exec(line))) return code(lines, at, found);
  if ((found = FORMULA.exec(line))) {
    const block = formula(lines, at, found[1]);
    if (block) return block;
  }
  if ((found = HEADING.exec(line))) {
    // Headings of the first and second level belong to the page.
    const [, signs, title] = found;
    return { end: at + 1, build: () => inline(el(`h${Math.min(signs.length + 2, 6)}`), title.replace(/ +#+ *$/, "")) };
  }
  if (RULE.test(line)) return { end: at + 1, build: () => el("hr") };
  if (QUOTE.test(line) && depth < DEEPEST) {
    const end = endOf(lines, at, (next) => QUOTE.test(next));
    return { end, build: () => filled("blockquote", lines.slice(at, end).map((quoted) => quoted.replace(QUOTE, "")), depth) };
  }
  if ((found = ITEM.exec(line)) && depth < DEEPEST) return list(lines, at, found, depth);
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) return table(lines, at);
  const end = endOf(lines, at + 1, (next) => !isBlank(next) && !startsBlock(next));
  return { end, build: () => inline(el("p"), lines.slice(at, end).join("\n")) };
}

/** Creates an element with the blocks of these lines. */
function filled(tag, lines, depth) {
  const element = el(tag);
  appendBlocks(lines, element, depth + 1);
  return element;
}

/** Returns the first line from `at` on that does not belong to the block. */
function endOf(lines, at, belongs) {
  while (at < lines.length && belongs(lines[at])) at += 1;
  return at;
}

function code(lines, at, [, fence, language]) {
  // An open fence contains the rest of the text, since its end has not been generated yet.
  const closes = (line) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";
  const end = endOf(lines, at + 1, (line) => !closes(line));
  const build = () => {
    const text = lines.slice(at + 1, end).join("\n");
    const head = el("figcaption", {}, el("span", {}, language || "text"), wrapButton(), copyButton(() => text));
    return el("figure", { class: "code" }, head, el("pre", { tabindex: "0" }, el("code", { "data-language": language || null }, text)));
  };
  return { end: end + 1, build };
}

/** The most lines of a formula, and the most characters of one within a text. */
const LONGEST_FORMULA = { lines: 60, display: 2000, inline: 400 };

/** A formula on its own lines, or `null` if it does not end. */
function formula(lines, at, open) {
  const close = open === "$$" ? "$$" : "\\]";
  const first = lines[at].trim().slice(open.length);
  const last = Math.min(lines.length, at + LONGEST_FORMULA.lines);
  for (let end = at; end < last && !isBlank(lines[end]); end++) {
    const line = (end === at ? first : lines[end]).trimEnd();
    if (!line.endsWith(close)) continue;
    const middle = end === at ? [] : [first, ...lines.slice(at + 1, end)];
    const tex = [...middle, line.slice(0, -close.length)].join("\n");
    // With text behind it on its line, the formula is part of a paragraph.
    if (tex.includes(close) || tex.trim() === "") return null;
    return { end: end + 1, build: () => el("p", {}, mathNode(lines.slice(at, end + 1).join("\n").trim(), tex, true)) };
  }
  return null;
}

/** A formula as plain text, which `enrich.js` renders when its block is complete. */
function mathNode(written, tex, isDisplay) {
  return el("code", { class: "math", "data-tex": tex, "data-display": isDisplay }, written);
}

function list(lines, at, [, margin, first], depth) {
  const isNumbered = /\d/.test(first);
  const items = [];
  const base = margin.length;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== base || /\d/.test(found[2]) !== isNumbered) break;
    const indent = base + found[2].length + 1;
    const start = at;
    const belongs = (line) => isBlank(line) || leading(line) > base || !(startsBlock(line) || isBlank(lines[start]));
    let end = at + 1;
    while (end < lines.length && belongs(lines[end])) {
      // After an empty line, only indented lines belong to the item.
      if (isBlank(lines[end - 1]) && !isBlank(lines[end]) && leading(lines[end]) <= base) break;
      end += 1;
    }
    const inner = lines.slice(at + 1, end).map((line) => line.slice(Math.min(leading(line), indent)));
    items.push([found[3], ...inner]);
    at = end;
  }
  const build = () => {
    const whole = el(isNumbered ? "ol" : "ul", isNumbered ? { start: Number.parseInt(first, 10) } : {});
    for (const [begin, ...inner] of items) {
      const task = TASK.exec(begin);
      const item = filled("li", [task ? begin.slice(task[0].length) : begin, ...inner], depth);
      // An item that is one paragraph is shown as a line, without the margins of a paragraph.
      if (item.firstChild?.tagName === "P") item.firstChild.replaceWith(...item.firstChild.childNodes);
      if (task) asTask(item, task[1] !== " ");
      whole.append(item);
    }
    return whole;
  };
  return { end: at, build };
}

/** Makes an item of a list a task, which is shown and cannot be changed. */
function asTask(item, isDone) {
  item.className = "task";
  item.prepend(el("input", { type: "checkbox", checked: isDone, disabled: true, "aria-label": isDone ? "Done" : "To do" }), " ");
}

const leading = (line) => line.length - line.trimStart().length;

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, tag) => el("tr", {}, ...cells(line).map((cell) => inline(el(tag), cell)));
  const end = endOf(lines, at + 2, (line) => line.includes("|"));
  const build = () => {
    const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
    const whole = el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, ...body));
    return el("div", { class: "wide", tabindex: "0" }, whole);
  };
  return { end, build };
}

const OPENERS = /[\\`*_~[$]|https?:\/\//g;
const ADDRESS = /^https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)\]*_]/;

/** Appends the text of a paragraph to `to`, with emphasis, code and links. */
function inline(to, text, depth = 0) {
  let plain = 0;
  let at = 0;
  const put = (end, node, next) => {
    if (end > plain) to.append(text.slice(plain, end));
    to.append(node);
    plain = at = next;
  };
  while (depth < DEEPEST) {
    OPENERS.lastIndex = at;
    const opener = OPENERS.exec(text);
    if (!opener) break;
    const from = opener.index;
    const found = span(text, from, depth);
    if (found) put(from, found.node, found.end);
    else at = from + opener[0].length;
  }
  to.append(text.slice(plain));
  return to;
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

/** Returns the node that begins at `from`, and the position behind it. */
function span(text, from, depth) {
  const mark = text[from];
  if (mark === "$" || (mark === "\\" && /[([]/.test(text[from + 1] ?? ""))) {
    const found = mathAt(text, from);
    if (found || mark === "$") return found;
  }
  if (mark === "\\") {
    const next = text[from + 1];
    return next && /[!-/:-@[-`{-~]/.test(next) ? { node: next, end: from + 2 } : null;
  }
  if (mark === "`") {
    const ticks = /^`+/.exec(text.slice(from, from + 32))[0];
    const end = text.indexOf(ticks, from + ticks.length);
    if (end < 0) return null;
    return { node: el("code", {}, text.slice(from + ticks.length, end).trim()), end: end + ticks.length };
  }
  if (mark === "[") {
    const close = text.indexOf("](", from);
    const end = close < 0 ? -1 : text.indexOf(")", close);
    const target = end < 0 ? "" : text.slice(close + 2, end);
    if (!/^https?:\/\/\S+$/.test(target) || text.slice(from, close).includes("\n\n")) return null;
    return { node: inline(link(target), text.slice(from + 1, close), DEEPEST), end: end + 1 };
  }
  if (mark === "h") {
    const target = ADDRESS.exec(text.slice(from, from + 2048))?.[0];
    return target ? { node: inline(link(target), target, DEEPEST), end: from + target.length } : null;
  }
  for (const [sign, tag] of MARKS) {
    if (!text.startsWith(sign, from)) continue;
    const start = from + sign.length;
    const end = text.indexOf(sign, start);
    const isWord = (at) => /\w/.test(text[at] ?? " ");
    // Neither names_like_this nor a * b * c are emphasis.
    const isInside = sign[0] === "_" && (isWord(from - 1) || isWord(end + sign.length));
    if (end <= start || isInside || /\s/.test(text[start]) || /\s/.test(text[end - 1])) continue;
    return { node: inline(el(tag), text.slice(start, end), depth + 1), end: end + sign.length };
  }
  return null;
}

/**
 * Returns the formula that begins at `from`, or `null`, since a dollar sign may be an amount of
 * money.
 */
function mathAt(text, from) {
  const open = text[from] === "$" && text[from + 1] !== "$" ? "$" : text.slice(from, from + 2);
  const close = { $: "$", $$: "$$", "\\(": "\\)", "\\[": "\\]" }[open];
  const isDisplay = open === "$$" || open === "\\[";
  const start = from + open.length;
  const near = text.slice(start, start + (isDisplay ? LONGEST_FORMULA.display : LONGEST_FORMULA.inline));
  const length = near.indexOf(close);
  const tex = near.slice(0, length);
  if (length < 1 || tex.trim() === "") return null;
  const end = start + length + close.length;
  if (open === "$" && (/^\s|[\s\\]$/.test(tex) || /\d/.test(text[end] ?? ""))) return null;
  return { node: mathNode(text.slice(from, end), tex, isDisplay), end };
}

const link = (target) => el("a", { href: target, target: "_blank", rel: "noopener noreferrer" });
