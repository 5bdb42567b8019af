// The state of the server from its metrics, once a second while the tab is visible.

import { address, fetchText } from "./api.js";
import { byId, el } from "./dom.js";
import { growth, perSecond } from "./rates.js";

const EVERY = 1000;

/** The number of points of a curve. */
const LENGTH = 60;

const SVG = "http://www.w3.org/2000/svg";

/** The series of `/metrics`. Series that differ only in their labels are added up. */
const SERIES = {
  running: "tgi_batch_current_size",
  waiting: "tgi_queue_size",
  blocks: "millrace_kv_blocks_used",
  allBlocks: "millrace_kv_blocks_total",
  firstTokens: "tgi_request_time_to_first_token_duration_count",
  laterTokens: "tgi_request_inter_token_duration_count",
  steps: "tgi_batch_forward_duration_count",
  stepSeconds: "tgi_batch_forward_duration_sum",
  restarts: "millrace_shard_restarts_total",
};

/**
 * The values that are shown, computed from two successive samples; `null` if a value is not known.
 */
const TILES = [
  { name: "running", label: "Running", now: (at) => at.running },
  { name: "waiting", label: "Waiting", now: (at) => at.waiting },
  { name: "speed", label: "Tokens per second", digits: 1, now: (at, before) => rate(at, before, "tokens") },
  { name: "step", label: "Step, ms", digits: 1, now: (at, before) => stepTime(at, before) },
  { name: "cache", label: "KV cache, %", digits: 1, most: 100, now: (at) => (at.allBlocks ? (100 * at.blocks) / at.allBlocks : 0) },
  { name: "restarts", label: "Restarts", now: (at) => at.restarts },
];

const delta = (at, before, name) => (before ? growth(at[name], before[name]) : 0);
const rate = (at, before, name) => (before ? (perSecond(delta(at, before, name), at.time - before.time) ?? 0) : 0);

function stepTime(at, before) {
  const steps = delta(at, before, "steps");
  return steps > 0 ? (1000 * delta(at, before, "stepSeconds")) / steps : null;
}

/**
 * Starts polling. `hooks.back(state)` is called when the server responds for the first time or
 * with another status, and `hooks.status(state)` after each poll.
 */
export function watch(hooks) {
  const tiles = TILES.map(tile);
  byId("tiles").replaceChildren(...tiles.map((shown) => shown.element));
  let before = null;
  let last = null;

  async function look() {
    const state = await ready();
    if (state.status !== "unreachable" && last !== state.status) hooks.back(state);
    last = state.status;
    hooks.status(state);
    if (state.status === "unreachable") {
      before = null;
      return;
    }
    const at = await sample();
    tiles.forEach((shown) => shown.add(at, before));
    before = at;
  }

  (async () => {
    for (;;) {
      if (!document.hidden) await look().catch(() => (before = null));
      await new Promise((done) => setTimeout(done, EVERY));
    }
  })();
}

/** Fetches `/ready`, whatever its status is. */
async function ready() {
  try {
    const response = await fetch(address("ready"), { cache: "no-store", signal: AbortSignal.timeout(5000) });
    return await response.json();
  } catch {
    return { status: "unreachable" };
  }
}

async function sample() {
  const query = Object.values(SERIES).map((name) => `name[]=${name}`).join("&");
  const sums = new Map();
  for (const line of (await fetchText(`metrics?${query}`)).split("\n")) {
    const found = /^([\w:]+)(?:\{.*\})? (\S+)$/.exec(line);
    // A series without a measurement may be NaN.
    if (found && Number.isFinite(Number(found[2]))) sums.set(found[1], (sums.get(found[1]) ?? 0) + Number(found[2]));
  }
  const at = { time: performance.now() / 1000 };
  for (const [name, series] of Object.entries(SERIES)) at[name] = sums.get(series) ?? 0;
  at.tokens = at.firstTokens + at.laterTokens;
  return at;
}

function tile({ name, label, digits = 0, most, now }) {
  const number = el("dd", { id: `live-${name}` }, "\u2013");
  const points = [];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${LENGTH - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const [area, line] = ["area", "line"].map((kind) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    svg.append(path);
    return path;
  });

  function add(at, before) {
    const value = now(at, before);
    number.textContent = value === null ? "\u2013" : value.toFixed(digits);
    points.push(value ?? points.at(-1) ?? 0);
    if (points.length > LENGTH) points.shift();
    const top = most ?? Math.max(...points, 1);
    const x = (index) => LENGTH - points.length + index;
    const curve = points.map((point, index) => `${x(index)},${(19 - (18 * point) / top).toFixed(2)}`).join(" L");
    line.setAttribute("d", `M${curve}`);
    area.setAttribute("d", `M${x(0)},20 L${curve} L${LENGTH - 1},20 Z`);
  }

  return { element: el("div", { class: "tile" }, el("dt", {}, label), number, svg), add };
}
