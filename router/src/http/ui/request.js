// From a conversation and the settings to the request that asks for its next answer.

/**
 * Chat sends the conversation; completion sends the last prompt alone. If the conversation ends with an answer, that
 * answer is to be continued.
 *
 * @param turns `[{ role, content }]`
 * @param settings what `settings.js` reads from its form
 * @param server what `server.json` says
 */
export function request(turns, settings, server) {
  const said = turns.filter((turn) => turn.content !== "");
  const options = { stream: true, stream_options: { include_usage: true }, ...settings.parameters };
  if (settings.mode === "completion") {
    const body = { model: server.model, prompt: prompt(said), ...options };
    if (settings.probabilities) body.logprobs = server.max_top_n_tokens;
    return { path: "v1/completions", body };
  }
  const messages = said.map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: server.model, messages, ...options };
  if (said.at(-1)?.role === "assistant") body.continue_final_message = true;
  if (settings.probabilities) {
    body.logprobs = true;
    body.top_logprobs = server.max_top_n_tokens;
  }
  return { path: "v1/chat/completions", body };
}

function prompt(turns) {
  const last = turns.findLastIndex((turn) => turn.role === "user");
  return turns.slice(Math.max(last, 0)).map((turn) => turn.content).join("");
}
