// A conversation with its branches. Every turn knows its parent; turns with the same parent are versions of each other, and
// each turn knows which of its children is shown.

/** The parent of turns that nothing was said before, and the child of turns that nothing follows. */
const NONE = -1;

/** A conversation without turns. `turns` holds parents before their children. */
export function newConversation() {
  const now = Date.now();
  return { id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`, title: "", created: now, updated: now, first: NONE, turns: [] };
}

/** The turns that are shown, first to last. */
export function path({ first, turns }) {
  const shown = [];
  for (let at = first; at !== NONE; at = turns[at].next) shown.push(turns[at]);
  return shown;
}

/** The turns that are shown up to `turn`, without it. */
export function before(conversation, turn) {
  const shown = path(conversation);
  return shown.slice(0, shown.indexOf(turn));
}

/** Adds a turn after `parent` (`null`: as a first turn) and shows it. */
export function append(conversation, parent, turn) {
  const { turns } = conversation;
  Object.assign(turn, { parent: parent ? turns.indexOf(parent) : NONE, next: NONE });
  turns.push(turn);
  choose(conversation, turn);
  return turn;
}

/** The turns that stand in the same place as `turn`, oldest first. */
export const versions = ({ turns }, turn) => turns.filter((other) => other.parent === turn.parent);

/** Shows this version, and what was last shown after it. */
export function choose(conversation, turn) {
  const at = conversation.turns.indexOf(turn);
  if (turn.parent === NONE) conversation.first = at;
  else conversation.turns[turn.parent].next = at;
}

/** A conversation's name: what its user called it, or how it begins. */
export function titleOf({ title, turns }) {
  if (title) return title;
  const begin = turns.find((turn) => turn.role === "user");
  const line = (begin?.content.trim() || begin?.files?.[0]?.name || "New chat").split("\n")[0];
  return line.length > 80 ? `${line.slice(0, 79)}\u2026` : line;
}
