// The form of a route: its parameters and its body, and the response of the server.

import { copyButton, el } from "./dom.js";

/** The most characters of a response that are shown. */
const LONGEST = 500_000;

/**
 * Creates the form that sends a request to a route.
 *
 * @param route the element of the route, which has its method, its path, its parameters and an
 * example of its body
 * @param key returns the API key, or an empty text
 */
export function tryForm(route, key) {
  const { method, path } = route.dataset;
  const parameters = [...route.querySelectorAll(".parameters tr[data-name]")].map((row) => parameterField(route.id, row.dataset));
  const body = method === "get" ? null : bodyField(route);
  const send = el("button", { class: "primary" }, "Send");
  const stop = el("button", { type: "button", disabled: true }, "Stop");
  const trouble = el("p", { class: "trouble", role: "alert" });
  const output = responseView();
  let control = null;

  stop.addEventListener("click", () => control?.abort());

  async function submit(event) {
    event.preventDefault();
    trouble.textContent = body ? problemOf(body.value) : "";
    if (trouble.textContent) return body.focus();
    control?.abort();
    const own = (control = new AbortController());
    stop.disabled = false;
    const headers = body ? { "content-type": "application/json" } : {};
    if (key()) headers.authorization = `Bearer ${key()}`;
    const options = { method: method.toUpperCase(), headers, body: body?.value, signal: own.signal, cache: "no-store" };
    await output.show(addressOf(path, parameters), options);
    if (control === own) stop.disabled = true;
  }

  const form = el("form", { class: "try", "aria-label": `Send a request to ${path}`, onsubmit: submit },
    el("h4", {}, "Try it"), ...parameters.map(({ element }) => element), ...(body ? [body.label, body.field] : []), trouble,
    el("div", { class: "bar" }, send, stop, copyButton(() => command(method, addressOf(path, parameters), body?.value, key() !== ""), "Copy as curl")), output.element);
  return form;
}

/** A field for a parameter of the path or of the query. */
function parameterField(id, { name, place, required }) {
  const field = el("input", { id: `${id}-${name}`, type: "text", required: required === "true", autocomplete: "off", spellcheck: "false" });
  return { name, place, field, element: el("div", { class: "parameter" }, el("label", { for: field.id }, name), field) };
}

/** The field of the body, which begins with the example. */
function bodyField(route) {
  const text = route.querySelector(".example code")?.textContent ?? "{}";
  const id = `${route.id}-body`;
  const field = el("textarea", { id, class: "mono", rows: String(Math.min(16, text.split("\n").length + 1)), spellcheck: "false", autocomplete: "off" });
  field.value = text;
  // Ctrl + Enter sends, since Enter alone begins a line.
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    field.form.requestSubmit();
  });
  return { field, label: el("label", { for: id }, "Body"), focus: () => field.focus(), get value() { return field.value; } };
}

/** Returns the reason why a body is not sent, or an empty text. */
function problemOf(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `The body is not JSON: ${error.message}`;
  }
}

/** The address of a route with these parameters, also behind a proxy with a path of its own. */
function addressOf(path, parameters) {
  let filled = path;
  const query = new URLSearchParams();
  for (const { name, place, field } of parameters) {
    // A name of a model may contain slashes, which stay.
    if (place === "path") filled = filled.replace(`{${name}}`, field.value.split("/").map(encodeURIComponent).join("/"));
    else if (field.value !== "") query.append(name, field.value);
  }
  const url = new URL(`..${filled}`, location.href.split("#")[0]);
  url.search = query;
  return url.href;
}

/** The request as a command for a shell. */
function command(method, url, body, hasKey) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -N ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${quoted(url)}`];
  if (hasKey) lines.push('-H "authorization: Bearer $MILLRACE_API_KEY"');
  if (body !== undefined) lines.push("-H 'content-type: application/json'", `-d ${quoted(body)}`);
  return lines.join(" \\\n  ");
}

/** The place of the response. `show(url, options)` fetches it and shows it while it comes. */
function responseView() {
  const status = el("p", { class: "status", role: "status" });
  const headers = el("pre", { tabindex: "0", "aria-label": "Headers of the response" });
  const body = el("pre", { tabindex: "0", "aria-label": "Body of the response" });
  const folded = el("details", { class: "headers" }, el("summary", {}, "Headers"), headers);
  const copied = copyButton(() => body.textContent);
  const figure = el("figure", { class: "code" }, el("figcaption", {}, el("span", {}, "Body"), copied), body);
  const element = el("div", { class: "response", hidden: true }, status, folded, figure);

  async function show(url, options) {
    const since = performance.now();
    const took = () => `${Math.round(performance.now() - since).toLocaleString("en")} ms`;
    element.hidden = false;
    element.dataset.kind = "";
    folded.hidden = true;
    status.textContent = "Sent, and waiting for the response";
    headers.textContent = body.textContent = "";
    let told = "";
    try {
      const response = await fetch(url, options);
      told = `${response.status} ${response.statusText}`.trim();
      element.dataset.kind = response.ok ? "good" : "bad";
      status.textContent = `${told} · headers after ${took()}`;
      headers.textContent = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
      folded.hidden = false;
      const isWhole = await pour(response, body);
      if (isWhole && response.headers.get("content-type")?.startsWith("application/json")) body.textContent = indented(body.textContent);
      status.textContent = `${told} · complete after ${took()}${isWhole ? "" : ` · only the first ${LONGEST.toLocaleString("en")} characters are shown`}`;
    } catch (error) {
      element.dataset.kind = "bad";
      const reason = options.signal.aborted ? "stopped" : told ? "the connection was lost" : "The server cannot be reached.";
      status.textContent = told ? `${told} · ${reason} after ${took()}` : reason;
    }
  }

  return { element, show };
}

/** Shows the text of a response while it comes. Resolves to whether all of it is shown. */
async function pour(response, place) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let length = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    place.append(value.slice(0, LONGEST - length));
    length += value.length;
    if (length <= LONGEST) continue;
    reader.cancel().catch(() => {});
    return false;
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
