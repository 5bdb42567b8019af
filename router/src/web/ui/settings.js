// The form of parameters. Empty fields are not sent, so that the server's defaults apply.

import { byId, el, kept } from "./dom.js";

/**
 * The number fields of a request. `usual` is the server's default unless the model has another one;
 * a field with `slide` has a slider.
 */
const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.01, usual: 1, slide: 0.05, hint: "0 takes the most likely token each time" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, usual: 1, slide: 0.01, hint: "Share of probability to choose from" },
  { name: "top_k", label: "Top k", min: 1, step: 1, usual: "all", hint: "Tokens to choose from" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, usual: 0, slide: 0.01, hint: "Least share of the best token's probability" },
  { name: "max_tokens", label: "Longest answer", min: 1, step: 1, usual: "what fits", hint: "In tokens" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, usual: "random", hint: "The same seed gives the same answer" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 2, step: 0.01, usual: 1, slide: 0.01, hint: "Above 1, words come back less often" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.01, usual: 0, slide: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.01, usual: 0, slide: 0.05 },
];

const form = byId("settings");
const memory = kept("localStorage", "millrace.settings");
const keyMemory = kept("sessionStorage", "millrace.key");

/** How the thinking of the model is controlled, or null if it has none or is loading. */
let control = null;

/**
 * Builds the form and fills it with the stored settings. `changed` is called after every change.
 */
export function openSettings(changed) {
  const place = byId("numbers");
  NUMBERS.forEach((number) => place.append(row(number)));
  const saved = memory.get() ?? {};
  for (const field of form.elements) {
    if (!isKept(field) || !(field.name in saved)) continue;
    if (field.type === "radio") field.checked = field.value === saved[field.name];
    else if (field.type === "checkbox") field.checked = saved[field.name] === true;
    else field.value = saved[field.name];
  }
  form.elements.key.value = keyMemory.get() ?? "";
  byId("probabilities-wanted").checked = saved.probabilities === true;
  const update = () => {
    slide();
    fitChoice();
    save();
    changed();
  };
  form.addEventListener("input", update);
  byId("probabilities-wanted").addEventListener("change", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("reset").addEventListener("click", () => {
    NUMBERS.forEach(({ name }) => (form.elements[name].value = ""));
    for (const name of ["stop", "schema", "tools", "thinking_budget"]) form.elements[name].value = "";
    byId("thinking-default").checked = true;
    update();
  });
  slide();
}

/** The key is not stored with the settings and is forgotten when the window is closed. */
const isKept = (field) => field.name !== "" && field.name !== "key";

function save() {
  const values = { probabilities: byId("probabilities-wanted").checked };
  for (const field of form.elements) {
    if (!isKept(field) || (field.type === "radio" && !field.checked)) continue;
    values[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  memory.set(values);
  keyMemory.set(form.elements.key.value.trim());
}

function row({ name, label, min, max, step, usual, slide, hint }) {
  const id = `set-${name}`;
  const about = hint ? `${id}-hint` : null;
  const field = el("input", { id, name, type: "number", inputmode: "decimal", min, max, step, placeholder: usual, "aria-describedby": about });
  const parts = [el("label", { for: id }, label), field];
  if (slide) {
    // The slider is for pointers; the field beside it is for the keyboard.
    const slider = el("input", { type: "range", min, max, step: slide, "data-for": name, tabindex: "-1", "aria-hidden": "true" });
    slider.addEventListener("input", () => (field.value = slider.value));
    parts.push(slider);
  }
  if (hint) parts.push(el("small", { id: about }, hint));
  return el("div", { class: "number" }, ...parts);
}

/** Sets the sliders to the numbers in the fields, or to those that the server takes without them. */
function slide() {
  for (const slider of form.querySelectorAll("[data-for]")) {
    const { value, placeholder } = form.elements[slider.dataset.for];
    slider.value = value === "" ? placeholder : value;
    slider.classList.toggle("unset", value === "");
  }
}

/** Shows the numbers that the server takes for empty fields. */
function fitNumbers({ info }) {
  const recommended = info?.sampling_defaults ?? {};
  for (const { name, usual } of NUMBERS) form.elements[name].placeholder = recommended[name] ?? usual;
  slide();
}

/** The reasons why a choice of thinking is not offered. `control` is `thinking` of `/info`. */
const THINKING = {
  off: (control) => (control.switch || control.budget ? "" : "This model cannot be kept from thinking."),
  budget: (control) => (control.budget ? "" : "The tokens of this model's thinking cannot be limited."),
};

function fitThinking({ info, has_chat_template }) {
  control = info?.thinking ?? null;
  const missing = has_chat_template ? "The chat template of this model has no thinking." : "";
  const reasons = control ? Object.entries(THINKING).map(([value, reason]) => [value, reason(control)]) : [];
  for (const [value, reason] of reasons) {
    byId(`thinking-${value}`).disabled = reason !== "";
    if (reason && byId(`thinking-${value}`).checked) byId("thinking-default").checked = true;
  }
  const told = reasons.map(([, reason]) => reason).filter(Boolean).join(" ");
  byId("thinking-reason").textContent = info ? (control ? told : missing) : "Known when the model is loaded.";
  byId("thinking-reason").hidden = byId("thinking-reason").textContent === "";
  form.elements.thinking_budget.placeholder = control?.default_budget ?? "tokens";
  fitChoice();
}

/** Offers the thinking to chats, and the field of the budget if it is chosen. */
function fitChoice() {
  const { mode, thinking, thinking_budget: budget } = form.elements;
  byId("thinking").hidden = mode.value === "completion";
  byId("thinking").disabled = !control || mode.value === "completion";
  // A field that is not shown may be wrong.
  budget.disabled = thinking.value !== "budget" || byId("thinking").disabled;
  byId("budget-row").hidden = budget.disabled;
}

/** The fields of a request for the chosen thinking. */
function thinkingFields() {
  const { thinking, thinking_budget: budget } = form.elements;
  // Templates without this variable do not get it.
  const thinks = { chat_template_kwargs: { enable_thinking: true } };
  if (byId("thinking").disabled || thinking.value === "default") return {};
  if (thinking.value === "off") return { reasoning_effort: "none" };
  if (thinking.value === "on") return { ...thinks, thinking_token_budget: -1 };
  return budget.value !== "" && budget.validity.valid ? { ...thinks, thinking_token_budget: budget.valueAsNumber } : {};
}

/** Changes the system prompt, as if the user had written it into its field. */
export function setSystem(text) {
  form.elements.system.value = text;
  form.elements.system.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Shows the fields that this server supports. */
export function fitSettings(server) {
  const { elements } = form;
  if (server.max_total_tokens) elements.max_tokens.max = server.max_total_tokens;
  elements.schema.disabled = !server.grammar;
  byId("mode-chat").disabled = !server.has_chat_template;
  byId("no-template").hidden = server.has_chat_template;
  if (!server.has_chat_template) byId("mode-completion").checked = true;
  fitNumbers(server);
  fitThinking(server);
  byId("key-row").hidden = !server.needs_key;
}

/** Returns the settings for `request.js`, without invalid ones. */
export function settings() {
  const { elements } = form;
  const parameters = {};
  for (const { name } of NUMBERS) {
    const field = elements[name];
    if (field.value !== "" && field.validity.valid) parameters[name] = field.valueAsNumber;
  }
  if (stops().length) parameters.stop = stops();
  const schema = parsed(elements.schema.value);
  if (schema && !elements.schema.disabled) {
    parameters.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return {
    mode: elements.mode.value,
    system: elements.system.value.trim(),
    probabilities: byId("probabilities-wanted").checked,
    tools: toolList(elements.tools.value),
    thinking: thinkingFields(),
    parameters,
  };
}

/** Returns the API key, if there is one. */
export const apiKey = () => form.elements.key.value.trim();

/** Returns whether all settings are valid, and marks those that are not. */
export function check(server) {
  const { stop, schema, tools, thinking_budget: budget } = form.elements;
  const lacksBudget = !budget.disabled && budget.value === "" && !budget.validity.badInput;
  budget.setCustomValidity(lacksBudget ? "Enter the tokens that the model may think." : "");
  const most = server.max_stop_sequences;
  stop.setCustomValidity(stops().length > most ? `The server takes ${most} stop texts at most.` : "");
  const isSchema = schema.disabled || schema.value.trim() === "" || parsed(schema.value) !== null;
  schema.setCustomValidity(isSchema ? "" : "This is not a JSON object.");
  const areTools = tools.value.trim() === "" || toolList(tools.value) !== null;
  tools.setCustomValidity(areTools ? "" : "This is not a JSON list of tools, each with a function that has a name.");
  return form.checkValidity();
}

/** Shows the first invalid setting. */
export const complain = () => form.reportValidity();

/** Reads one stop string for each line, with `\n` and `\t` for line breaks and tabs. */
function stops() {
  const written = (line) => line.replace(/\\([nt\\])/g, (_, sign) => ({ n: "\n", t: "\t", "\\": "\\" })[sign]);
  return form.elements.stop.value.split("\n").filter((line) => line !== "").map(written);
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** Returns the tools in the form of the API, or `null`. */
function toolList(text) {
  try {
    const tools = JSON.parse(text);
    const isList = Array.isArray(tools) && tools.length > 0 && tools.every((tool) => typeof tool?.function?.name === "string");
    return isList ? tools : null;
  } catch {
    return null;
  }
}
