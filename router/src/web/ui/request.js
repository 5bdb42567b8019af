// Builds the request for the next answer from a conversation and the settings.

import { withFiles } from "./attach.js";

/**
 * In chat mode the request has the whole conversation, in completion mode only the last prompt. If
 * the conversation ends with an answer, that answer is continued.
 *
 * @param turns the turns of a conversation, as in `tree.js`
 * @param settings the settings that `settings.js` reads from its form
 * @param server the properties in `server.json`
 */
export function request(turns, settings, server) {
  const options = { stream: true, stream_options: { include_usage: true }, ...settings.parameters };
  if (settings.mode === "completion") {
    const body = { model: server.model, prompt: prompt(turns), ...options };
    if (settings.probabilities) body.logprobs = server.max_top_n_tokens;
    return { path: "v1/completions", body };
  }
  const messages = turns.flatMap(messagesOf);
  const last = messages.at(-1);
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: server.model, messages, ...options, ...settings.thinking };
  if (settings.tools) body.tools = settings.tools;
  if (last?.role === "assistant" && !last.tool_calls) body.continue_final_message = true;
  if (settings.probabilities) {
    body.logprobs = true;
    body.top_logprobs = server.max_top_n_tokens;
  }
  return { path: "v1/chat/completions", body };
}

/** Returns the messages of a turn: none if it is empty, several if tools were called. */
function messagesOf(turn) {
  const content = withFiles(turn);
  const { role, calls } = turn;
  if (!calls?.length) return content === "" ? [] : [{ role, content }];
  const asked = calls.map(({ id, name, arguments: values }) => ({ id, type: "function", function: { name, arguments: values } }));
  const results = calls.filter(({ result }) => result != null);
  return [
    { role, content, tool_calls: asked },
    ...results.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result })),
  ];
}

function prompt(turns) {
  const last = turns.findLastIndex((turn) => turn.role === "user");
  return turns.slice(Math.max(last, 0)).map(withFiles).join("");
}
