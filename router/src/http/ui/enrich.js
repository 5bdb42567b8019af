// Colours for code and formulas for LaTeX, in blocks that are finished. The two libraries are loaded when the first block
// needs them. Neither writes HTML: both give trees, from which nodes are made here.

import { el } from "./dom.js";

/** Characters of a code block, of one of its lines, and of a formula, beyond which they stay as they were written. */
const LONGEST = { code: 20_000, line: 1_000, formula: 2_000 };

/** Formulas of one block. */
const MOST_FORMULAS = 200;

/** What models call the languages, where the library calls them otherwise. */
const ALIASES = {
  "c++": "cpp", cc: "cpp", h: "c", hpp: "cpp", js: "javascript", jsx: "javascript", mjs: "javascript", ts: "typescript", tsx: "typescript",
  py: "python", python3: "python", rs: "rust", golang: "go", sh: "bash", shell: "bash", zsh: "bash", console: "bash", yml: "yaml",
  html: "markup", xml: "markup", svg: "markup", jsonc: "json", patch: "diff", postgresql: "sql", sqlite: "sql",
};

/** Languages that are coloured. */
const LANGUAGES = new Set([
  "markup", "css", "javascript", "typescript", "python", "rust", "go", "java", "c", "cpp", "bash", "json", "yaml", "toml", "sql", "diff",
]);

/** Colours the code and sets the formulas of a finished block. */
export function enrich(node) {
  const all = (selector) => [...(node.matches(selector) ? [node] : []), ...node.querySelectorAll(selector)];
  for (const code of all("code[data-language]")) colour(code).catch(() => {});
  for (const code of all("code.math").slice(0, MOST_FORMULAS)) set(code).catch(() => {});
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
  // Without trust there are no links and no pictures; what cannot be read stays as it was written.
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

/** A node of the library's tree as an element. An element that is not MathML is an error, other attributes are dropped. */
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
  // The policy forbids style attributes, and these are set one by one.
  for (const [name, value] of Object.entries(tree.style ?? {})) if (!String(value).includes("url(")) element.style[name] = value;
  element.append(...inner);
  return element;
}
