// The parts of an answer: its thinking, its tool calls, and its text.

const OPEN = "<think>";
const CLOSE = "</think>";
const CALL = "<tool_call>";
const CALL_END = "</tool_call>";

/**
 * Returns the parts `{ thinking, isThinking, text, calls }` of an answer's content. `thinking` is
 * `null` if there is none. Tool calls that the server has left in the text are removed from it and
 * returned as `[{ id, name, arguments }]`, where `arguments` is JSON. `isRunning` says that the
 * answer is not complete.
 */
export function split(content, isRunning = false) {
  const { thinking, isThinking, rest } = thoughts(content, isRunning);
  return { thinking, isThinking, ...written(rest) };
}

function thoughts(content, isRunning) {
  const begin = content.slice(0, 64).trimStart();
  // An incomplete tag is not shown.
  if (isRunning && begin !== "" && content.length < 64 && OPEN.startsWith(begin.trimEnd())) return { thinking: "", isThinking: true, rest: "" };
  const isOpened = begin.startsWith(OPEN);
  const close = content.indexOf(CLOSE);
  // Some templates write the opening tag themselves, so the answer has only the closing tag, on its
  // own line.
  const isClosed = close >= 0 && (isOpened || /\n\s*$/.test(content.slice(Math.max(0, close - 16), close)));
  if (!isOpened && !isClosed) return { thinking: null, isThinking: false, rest: content };
  const from = isOpened ? content.indexOf(OPEN) + OPEN.length : 0;
  if (!isClosed) return { thinking: content.slice(from).trim(), isThinking: true, rest: "" };
  return { thinking: content.slice(from, close).trim(), isThinking: false, rest: content.slice(close + CLOSE.length).trimStart() };
}

function written(rest) {
  const calls = [];
  let text = "";
  let at = 0;
  for (;;) {
    const from = rest.indexOf(CALL, at);
    const end = from < 0 ? -1 : rest.indexOf(CALL_END, from);
    if (end < 0) return { text: text + rest.slice(at), calls };
    const call = parsed(rest.slice(from + CALL.length, end));
    const next = end + CALL_END.length;
    text += rest.slice(at, call ? from : next);
    if (call) calls.push(call);
    at = next;
  }
}

function parsed(text) {
  try {
    const { name, arguments: values } = JSON.parse(text);
    return typeof name === "string" ? { id: "", name, arguments: JSON.stringify(values ?? {}) } : null;
  } catch {
    return null;
  }
}

/**
 * Measures how long an answer thinks. Called after each piece, with the seconds since the request.
 */
export function thinkingClock(turn) {
  const earlier = turn.thinkingSeconds ?? 0;
  let since = null;
  let isOver = split(turn.content).thinking !== null && !split(turn.content).isThinking;
  let looked = turn.content.length;
  return (seconds) => {
    if (isOver) return;
    const begin = turn.content.slice(0, 64).trimStart();
    if (since === null && !turn.reasoning && !begin.startsWith(OPEN)) {
      isOver = begin.length >= OPEN.length;
      return;
    }
    since ??= seconds;
    turn.thinkingSeconds = earlier + Math.max(0, seconds - since);
    // A tag may have begun in the previous piece.
    const from = Math.max(0, looked - CLOSE.length);
    looked = turn.content.length;
    isOver = begin.startsWith(OPEN) ? turn.content.includes(CLOSE, from) : turn.content !== "";
  };
}
