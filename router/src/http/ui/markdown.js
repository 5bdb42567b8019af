// The Markdown that models write, as nodes. What is not understood stays as it was written; HTML is text like any other.

import { copyButton, el } from "./dom.js";

/** A fragment with the text's blocks. */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  blocks(text.replaceAll("\r\n", "\n").split("\n"), fragment, 0);
  return fragment;
}

/** Quotes and lists in each other beyond this are shown as they were written. */
const DEEPEST = 6;

const FENCE = /^ {0,3}(```+|~~~+) *([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;
const DIVIDER = /^ *\|?(?: *:?-+:? *\|)+ *(?::?-+:? *)?$/;

const isBlank = (line) => line.trim() === "";
const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(line));

function blocks(lines, to, depth) {
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    let found;
    if (isBlank(line)) {
      at += 1;
    } else if ((found = FENCE.exec(line))) {
      at = code(lines, at, found, to);
    } else if ((found = HEADING.exec(line))) {
      // The page has its own first and second level.
      to.append(inline(el(`h${Math.min(found[1].length + 2, 6)}`), found[2].replace(/ +#+ *$/, "")));
      at += 1;
    } else if (RULE.test(line)) {
      to.append(el("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const end = endOf(lines, at, (next) => QUOTE.test(next));
      const quote = el("blockquote");
      blocks(lines.slice(at, end).map((quoted) => quoted.replace(QUOTE, "")), quote, depth + 1);
      to.append(quote);
      at = end;
    } else if ((found = ITEM.exec(line)) && depth < DEEPEST) {
      at = list(lines, at, found, to, depth);
    } else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
      at = table(lines, at, to);
    } else {
      const end = endOf(lines, at + 1, (next) => !isBlank(next) && !startsBlock(next));
      to.append(inline(el("p"), lines.slice(at, end).join("\n")));
      at = end;
    }
  }
}

/** The first line from `at` on that does not belong. */
function endOf(lines, at, belongs) {
  while (at < lines.length && belongs(lines[at])) at += 1;
  return at;
}

function code(lines, at, [, fence, language], to) {
  // A fence that is still open holds the rest: more is to come.
  const closes = (line) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";
  const end = endOf(lines, at + 1, (line) => !closes(line));
  const text = lines.slice(at + 1, end).join("\n");
  const head = el("figcaption", {}, el("span", {}, language || "text"), copyButton(() => text));
  to.append(el("figure", { class: "code" }, head, el("pre", { tabindex: "0" }, el("code", {}, text))));
  return end + 1;
}

function list(lines, at, [, margin, first], to, depth) {
  const isNumbered = /\d/.test(first);
  const items = el(isNumbered ? "ol" : "ul", isNumbered ? { start: Number.parseInt(first, 10) } : {});
  const base = margin.length;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== base || /\d/.test(found[2]) !== isNumbered) break;
    const indent = base + found[2].length + 1;
    const belongs = (line) => isBlank(line) || leading(line) > base || !(startsBlock(line) || isBlank(lines[at]));
    let end = at + 1;
    while (end < lines.length && belongs(lines[end])) {
      // After an empty line only what is indented goes on.
      if (isBlank(lines[end - 1]) && !isBlank(lines[end]) && leading(lines[end]) <= base) break;
      end += 1;
    }
    const inner = lines.slice(at + 1, end).map((line) => line.slice(Math.min(leading(line), indent)));
    const item = el("li");
    blocks([found[3], ...inner], item, depth + 1);
    // An item of one paragraph is a line, and not a paragraph.
    if (item.firstChild?.tagName === "P") item.firstChild.replaceWith(...item.firstChild.childNodes);
    items.append(item);
    at = end;
  }
  to.append(items);
  return at;
}

const leading = (line) => line.length - line.trimStart().length;

function table(lines, at, to) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, tag) => el("tr", {}, ...cells(line).map((cell) => inline(el(tag), cell)));
  const end = endOf(lines, at + 2, (line) => line.includes("|"));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const whole = el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, ...body));
  to.append(el("div", { class: "wide", tabindex: "0" }, whole));
  return end;
}

const OPENERS = /[\\`*_~[]|https?:\/\//g;
const ADDRESS = /^https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)\]*_]/;

/** Appends a paragraph's text to `to`, with emphasis, code and links. */
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

/** The node that begins at `from`, and where the text goes on. */
function span(text, from, depth) {
  const mark = text[from];
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
    // Names_like_this are no emphasis, and neither is a * b * c.
    const isInside = sign[0] === "_" && (isWord(from - 1) || isWord(end + sign.length));
    if (end <= start || isInside || /\s/.test(text[start]) || /\s/.test(text[end - 1])) continue;
    return { node: inline(el(tag), text.slice(start, end), depth + 1), end: end + sign.length };
  }
  return null;
}

const link = (target) => el("a", { href: target, target: "_blank", rel: "noopener noreferrer" });
