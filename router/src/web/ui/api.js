// Requests to the server: streamed answers, and the texts of errors.

/** The URL of a path of the server, which may be below another path of a proxy. */
export const address = (path) => new URL(`../${path}`, location.href).href;

/** The reason why there is no answer. `status` is 0 if the server did not respond. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Fetches a small JSON document. Throws an ApiError if it takes more than five seconds. */
export async function fetchJson(path) {
  const response = await get(path);
  return response.json();
}

/** Fetches a text in the same way. */
export async function fetchText(path) {
  const response = await get(path);
  if (!response.ok) throw new ApiError(response.status, `The server answered with status ${response.status}.`);
  return response.text();
}

async function get(path) {
  try {
    return await fetch(address(path), { cache: "no-store", signal: AbortSignal.timeout(5000) });
  } catch {
    throw new ApiError(0, UNREACHABLE);
  }
}

/**
 * Sends a request and yields `{ text, reasoning, calls, token, finish, usage }` for each chunk.
 * `calls` are pieces of tool calls, `[{ index, id, name, values }]`. `token` is `{ text, logprob,
 * top: [{ text, logprob }] }` if log-probabilities were requested.
 */
export async function* generate({ path, body }, key, signal) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(address(path), { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    throw signal.aborted ? error : new ApiError(0, UNREACHABLE);
  }
  if (!response.ok) throw await refusal(response);
  let complete = false;
  for await (const data of events(response, signal)) {
    if (data === "[DONE]") {
      complete = true;
      break;
    }
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.http_status_code ?? 500, event.error.message);
    yield part(event);
  }
  if (!complete) throw new ApiError(0, CUT_OFF);
}

/** Yields the data of server-sent events. */
async function* events(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } catch (error) {
    throw signal.aborted ? error : new ApiError(0, CUT_OFF);
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The fields that the chunks of chats and of completions share. */
function part(event) {
  const choice = event.choices[0];
  if (!choice) return { text: "", reasoning: "", calls: [], token: null, finish: null, usage: event.usage };
  const { delta } = choice;
  return {
    text: delta ? (delta.content ?? "") : choice.text,
    // Servers use both names.
    reasoning: delta?.reasoning_content ?? delta?.reasoning ?? "",
    calls: (delta?.tool_calls ?? []).map(callPiece),
    token: token(choice.logprobs),
    finish: choice.finish_reason,
    usage: event.usage,
  };
}

const callPiece = ({ index, id, function: called }) => ({ index, id: id ?? "", name: called?.name ?? "", values: called?.arguments ?? "" });

function token(logprobs) {
  const chat = logprobs?.content?.[0];
  if (chat) {
    const top = chat.top_logprobs.map(({ token, logprob }) => ({ text: token, logprob }));
    return { text: chat.token, logprob: chat.logprob, top };
  }
  if (!logprobs?.tokens?.length) return null;
  const top = Object.entries(logprobs.top_logprobs?.[0] ?? {}).map(([text, logprob]) => ({ text, logprob }));
  return { text: logprobs.tokens[0], logprob: logprobs.token_logprobs[0], top };
}

const UNREACHABLE = "The server cannot be reached. It may be restarting, or the network may be down.";
const CUT_OFF = "The connection was lost before the answer was complete.";

async function refusal(response) {
  let told = "";
  try {
    told = (await response.json()).error?.message ?? "";
  } catch { /* Not everything on the way answers in JSON. */ }
  const seconds = Number.parseInt(response.headers.get("retry-after"), 10);
  const retryAfter = Number.isFinite(seconds) ? seconds : null;
  const again = retryAfter === null ? "Try again in a moment." : `Try again in ${count(retryAfter, "second")}.`;
  const words = {
    401: "The server wants an API key that it knows. Enter yours under Settings.",
    404: told || "The server does not have this route or model. Reload the page.",
    413: "This is too long for the server. Start a new chat, or shorten the message.",
    429: `The server is busy and takes no more requests. ${again}`,
    503: `The server cannot answer now${told ? `: ${told}` : ""}. ${again}`,
  };
  const message = words[response.status] ?? (told || `The server answered with status ${response.status}.`);
  return new ApiError(response.status, message, retryAfter);
}

/** Formats a duration: `3 seconds`, `1 second`. */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
