// Exports conversations as JSON and as Markdown, and imports JSON. A file may come from anywhere,
// so every part of it is validated, and only known parts are imported.

import { newConversation, path, titleOf } from "./tree.js";
import { withFiles } from "./attach.js";
import { split } from "./answer.js";

const FORMAT = "millrace.conversations";
const VERSION = 1;

/** The most bytes of an imported file. */
export const LARGEST_FILE = 32 * 1024 * 1024;

const LIMITS = { conversations: 500, turns: 2_000, text: 2_000_000, title: 200, files: 50, calls: 100 };

/** Returns the conversations as JSON, which `parse` reads. */
export function toJson(conversations) {
  const plain = conversations.map(({ id, title, created, updated, first, turns }) => (
    { id, title, created, updated, first, turns: turns.map(({ tokens, ...turn }) => turn) }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: plain }, null, 1);
}

/** Returns the shown turns of a conversation as Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  for (const turn of path(conversation)) {
    parts.push(turn.role === "user" ? "## You" : "## Answer");
    const text = turn.role === "user" ? withFiles(turn) : split(turn.content).text;
    if (text.trim()) parts.push(text.trim());
    for (const { name, arguments: values } of turn.calls ?? []) parts.push(`Call of \`${name}\`:\n\n\`\`\`json\n${values}\n\`\`\``);
  }
  return `${parts.join("\n\n")}\n`;
}

/**
 * Returns the conversations in the JSON of `toJson`. Throws an Error that says what is wrong with
 * the text.
 */
export function parse(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This is not a JSON file.");
  }
  if (file?.format !== FORMAT) throw new Error("This file was not exported from this page.");
  if (file.version !== VERSION) throw new Error("This file was exported by another version of this page, which this one cannot read.");
  const { conversations } = file;
  need(Array.isArray(conversations), "There are no conversations in this file.");
  need(conversations.length <= LIMITS.conversations, `There are more than ${LIMITS.conversations} conversations in this file.`);
  return conversations.map((conversation, index) => {
    try {
      return readConversation(conversation);
    } catch (error) {
      throw new Error(`Conversation ${index + 1} of this file cannot be read: ${error.message}`);
    }
  });
}

function need(condition, message) {
  if (!condition) throw new Error(message);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isTime = (value) => Number.isFinite(value) && value >= 0 && value < 8.64e15;

function text(value, name, most = LIMITS.text) {
  need(typeof value === "string", `${name} is not a text.`);
  need(value.length <= most, `${name} is longer than ${most} characters.`);
  return value;
}

function list(value, name, most) {
  if (value == null) return [];
  need(Array.isArray(value) && value.every(isObject), `${name} is not a list of objects.`);
  need(value.length <= most, `${name} has more than ${most} entries.`);
  return value;
}

function readConversation(value) {
  need(isObject(value), "it is not an object.");
  const turns = list(value.turns, "turns", LIMITS.turns);
  need(turns.length > 0, "it has no turns.");
  const read = turns.map(readTurn);
  const isChild = (at, parent) => Number.isInteger(at) && at > parent && at < read.length && read[at].parent === parent;
  read.forEach((turn, index) => {
    need(turn.next === -1 || isChild(turn.next, index), `turn ${index + 1} is followed by none of its children.`);
  });
  need(isChild(value.first, -1), "its first turn is missing.");
  const fresh = newConversation();
  const id = typeof value.id === "string" && /^[\w.-]{1,64}$/.test(value.id) ? value.id : fresh.id;
  return {
    id,
    title: text(value.title ?? "", "title", LIMITS.title),
    created: isTime(value.created) ? value.created : fresh.created,
    updated: isTime(value.updated) ? value.updated : fresh.updated,
    first: value.first,
    turns: read,
  };
}

/** The numbers that are shown below an answer. */
const FIGURES = ["firstAfter", "seconds", "generated", "thinkingSeconds", "earlier"];

function readTurn(value, index) {
  const { role, parent, next } = value;
  need(role === "user" || role === "assistant", `turn ${index + 1} has an unknown role.`);
  need(Number.isInteger(parent) && parent >= -1 && parent < index, `turn ${index + 1} has no parent before it.`);
  const turn = { role, parent, next, content: text(value.content, "content") };
  const files = list(value.files, "files", LIMITS.files).map((file) => ({ name: text(file.name, "a file's name", LIMITS.title), text: text(file.text, "a file") }));
  const calls = list(value.calls, "calls", LIMITS.calls).map((call) => ({
    id: text(call.id ?? "", "a call's id", LIMITS.title),
    name: text(call.name, "a call's name", LIMITS.title),
    arguments: text(call.arguments, "a call's arguments"),
    ...(call.result == null ? {} : { result: text(call.result, "a call's result") }),
  }));
  if (files.length) turn.files = files;
  if (calls.length) turn.calls = calls;
  if (role === "user") return turn;
  if (value.reasoning != null) turn.reasoning = text(value.reasoning, "reasoning");
  if (value.error != null) turn.error = text(value.error, "error", 10_000);
  turn.finish = value.finish == null ? null : text(value.finish, "finish", 40);
  turn.plain = value.plain === true;
  for (const name of FIGURES) if (Number.isFinite(value[name]) && value[name] >= 0) turn[name] = value[name];
  const counts = ["prompt_tokens", "completion_tokens"].filter((name) => Number.isFinite(value.usage?.[name]));
  if (counts.includes("completion_tokens")) turn.usage = Object.fromEntries(counts.map((name) => [name, Math.max(0, value.usage[name])]));
  if (value.edited === true) turn.edited = true;
  return turn;
}
