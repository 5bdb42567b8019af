// The facts about the model, and how much of its context the conversation uses.

import { byId, el } from "./dom.js";

const number = (value) => value.toLocaleString("en");

/** Shows the facts of `/info`, or nothing while the model is loading. */
export function showFacts(info) {
  const quantization = info?.quantize ?? "none";
  const thinking = info?.thinking?.format ?? (info?.thinking ? "in the answer" : "none");
  const rows = info ? [
    ["Model", info.model_id],
    ["Revision", info.model_sha],
    ["Context", `${number(info.max_total_tokens)} tokens`],
    ["Longest prompt", `${number(info.max_input_tokens)} tokens`],
    ["Data type", info.model_dtype],
    ["Quantization", quantization],
    ["Device", info.model_device_type],
    ["Thinking", thinking],
  ] : [];
  byId("facts").replaceChildren(...rows.filter(([, value]) => value).map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))));
  byId("facts").hidden = rows.length === 0;
  byId("model-facts").textContent = info ? [`${number(info.max_total_tokens)} tokens`, info.model_dtype, info.quantize ?? "not quantized"].join(" \u00b7 ") : "";
}

/**
 * Shows the tokens of the context that the conversation uses, as the server has counted them for
 * the last answer. After a change of the messages the number is not known until the next answer.
 */
export function showContext(turns, info) {
  const size = info?.max_total_tokens;
  const last = turns.findLast((turn) => turn.role === "assistant");
  const used = last?.usage?.prompt_tokens + last?.usage?.completion_tokens;
  const isKnown = Number.isFinite(used);
  byId("context-text").textContent = size ? told(turns, isKnown ? used : null, size) : "";
  const share = size && isKnown ? Math.min(1, used / size) : 0;
  byId("context-bar").style.setProperty("--share", share);
  byId("context-bar").classList.toggle("full", share > 0.9);
}

function told(turns, used, size) {
  if (used !== null) return `${number(used)} of ${number(size)} tokens of context used`;
  return `${number(size)} tokens of context${turns.length ? ", use not known yet" : ""}`;
}
