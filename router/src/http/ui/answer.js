// The parts of an answer: what the model thought, what it called, and what it said.

const OPEN = "<think>";
const CLOSE = "</think>";
const CALL = "<tool_call>";
const CALL_END = "</tool_call>";

/**
 * `{ thinking, isThinking, text, calls }` of an answer's content. `thinking` is `null` without thoughts. Tool calls that the
 * server has left in the text are taken out of it: `[{ id, name, arguments }]`, where `arguments` is JSON. `isRunning`: more
 * of the answer is to come.
 */
export function split(content, isRunning = false) {
  const { thinking, isThinking, rest } = thoughts(content, isRunning);
  return { thinking, isThinking, ...written(rest) };
}

function thoughts(content, isRunning) {
  const begin = content.slice(0, 64).trimStart();
  // A tag that has not come whole is no text yet.
  if (isRunning && begin !== "" && content.length < 64 && OPEN.startsWith(begin.trimEnd())) return { thinking: "", isThinking: true, rest: "" };
  const isOpened = begin.startsWith(OPEN);
  const close = content.indexOf(CLOSE);
  // Some templates open the thoughts themselves: then the answer has the end alone, on a line of its own.
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

/** Measures for how long an answer thinks: called after each piece of it, with the seconds since it was asked for. */
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
    // A tag may have begun in the piece before.
    const from = Math.max(0, looked - CLOSE.length);
    looked = turn.content.length;
    isOver = begin.startsWith(OPEN) ? turn.content.includes(CLOSE, from) : turn.content !== "";
  };
}
