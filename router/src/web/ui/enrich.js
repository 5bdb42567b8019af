// Colours code and renders LaTeX in complete blocks. The two libraries are loaded when the first
// block needs them. They return trees, from which this module creates nodes, so no HTML is written.

import { el } from "./dom.js";

/**
 * The most characters of a code block, of one of its lines, and of a formula. Longer ones stay
 * plain text.
 */
const LONGEST = { code: 20_000, line: 1_000, formula: 2_000 };

/** The most formulas of one block. */
const MAX_FORMULAS = 200;

/** Names that models use for languages, and the library's names for them. */
const ALIASES = {
  "c++": "cpp", cc: "cpp", h: "c", hpp: "cpp", js: "javascript", jsx: "javascript", mjs: "javascript", ts: "typescript", tsx: "typescript",
  py: "python", python3: "python", rs: "rust", golang: "go", sh: "bash", shell: "bash", zsh: "bash", console: "bash", yml: "yaml",
  html: "markup", xml: "markup", svg: "markup", jsonc: "json", patch: "diff", postgresql: "sql", sqlite: "sql",
};

/** The languages that are coloured. */
const LANGUAGES = new Set([
  "markup", "css", "javascript", "typescript", "python", "rust", "go", "java", "c", "cpp", "bash", "json", "yaml", "toml", "sql", "diff",
]);

/** Colours the code and renders the formulas of a complete block. */
export function enrich(node) {
  const all = (selector) => [...(node.matches(selector) ? [node] : []), ...node.querySelectorAll(selector)];
  for (const code of all("code[data-language]")) colour(code).catch(() => {});
  for (const code of all("code.math").slice(0, MAX_FORMULAS)) set(code).catch(() => {});
}

async function colour(code) {
  const said = code.dataset.language.toLowerCase();
  const language = ALIASES[said] ?? said;
  const text = code.textContent;
  if (!LANGUAGES.has(language) || text.length > LONGEST.code || text.split("\n").some((line) => line.length > LONGEST.line)) return;
  const { default: Prism } = await import("./vendor/prism.js");
  const nodes = Prism.tokenize(text, Prism.languages[language]).map(tokenNode);
  if (code.textContent === text) code.replaceChildren(...nodes);
}

/** A token is a text or `{ type, content }`, where the content is a token or a list of them. */
function tokenNode(token) {
  if (typeof token === "string") return document.createTextNode(token);
  const inner = Array.isArray(token.content) ? token.content : [token.content];
  return el("span", { class: `syntax-${token.type}` }, ...inner.map(tokenNode));
}

async function set(code) {
  const { tex } = code.dataset;
  if (tex.length > LONGEST.formula) return;
  const { default: temml } = await import("./vendor/temml.js");
  const displayMode = code.dataset.display !== undefined;
  // Without `trust` there are no links and no images. A formula that cannot be parsed stays plain
  // text.
  const options = { displayMode, throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 20] };
  const math = mathNode(temml.__renderToMathMLTree(tex, options));
  math.setAttribute("aria-label", tex);
  code.replaceWith(displayMode ? el("span", { class: "wide formula", tabindex: "0" }, math) : math);
}

const MATHML = "http://www.w3.org/1998/Math/MathML";

const ELEMENTS = new Set([
  "math", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts", "mroot", "mrow",
  "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "semantics", "none",
]);

const ATTRIBUTES = new Set([
  "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "columnspan", "depth", "dir", "display", "displaystyle", "fence",
  "form", "height", "largeop", "linethickness", "lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rowlines",
  "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width",
]);

/**
 * Creates an element for a node of the library's tree. Elements other than MathML throw; unknown
 * attributes are dropped.
 */
function mathNode(tree) {
  if (typeof tree.text === "string") return document.createTextNode(tree.text);
  const inner = (tree.children ?? []).map(mathNode);
  if (!tree.type) {
    const fragment = document.createDocumentFragment();
    fragment.append(...inner);
    return fragment;
  }
  if (!ELEMENTS.has(tree.type)) throw new Error(`<${tree.type}> in a formula`);
  const element = document.createElementNS(MATHML, tree.type);
  for (const [name, value] of Object.entries(tree.attributes ?? {})) if (ATTRIBUTES.has(name)) element.setAttribute(name, value);
  const classes = (tree.classes ?? []).filter(Boolean).join(" ");
  if (classes) element.setAttribute("class", classes);
  // The content security policy forbids style attributes, so the properties are set one by one.
  for (const [name, value] of Object.entries(tree.style ?? {})) if (!String(value).includes("url(")) element.style[name] = value;
  element.append(...inner);
  return element;
}
