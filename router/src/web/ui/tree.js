// A conversation as a tree of turns. Every turn has a parent, turns with the same parent are
// versions of each other, and each turn stores which of its children is shown.

/** The parent of first turns, and the child of last turns. */
const NONE = -1;

/** Creates a conversation without turns. In `turns`, parents come before their children. */
export function newConversation() {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`, title: "", created: now, updated: now, first: NONE, turns: [] };
}

/** Returns the turns that are shown, from first to last. */
export function path({ first, turns }) {
  const shown = [];
  for (let at = first; at !== NONE; at = turns[at].next) shown.push(turns[at]);
  return shown;
}

/** Returns the turns that are shown before `turn`. */
export function before(conversation, turn) {
  const shown = path(conversation);
  return shown.slice(0, shown.indexOf(turn));
}

/** Adds a turn after `parent`, or as a first turn if that is `null`, and shows it. */
export function append(conversation, parent, turn) {
  const { turns } = conversation;
  Object.assign(turn, { parent: parent ? turns.indexOf(parent) : NONE, next: NONE });
  turns.push(turn);
  choose(conversation, turn);
  return turn;
}

/** Returns the versions of `turn`, the oldest first. */
export const versions = ({ turns }, turn) => turns.filter((other) => other.parent === turn.parent);

/** Shows this version, and the turns that were last shown after it. */
export function choose(conversation, turn) {
  const at = conversation.turns.indexOf(turn);
  if (turn.parent === NONE) conversation.first = at;
  else conversation.turns[turn.parent].next = at;
}

/**
 * Returns the title of a conversation: the one that the user has set, or the beginning of its text.
 */
export function titleOf({ title, turns }) {
  if (title) return title;
  const begin = turns.find((turn) => turn.role === "user");
  const line = (begin?.content.trim() || begin?.files?.[0]?.name || "New chat").split("\n")[0];
  return line.length > 80 ? `${line.slice(0, 79)}\u2026` : line;
}
