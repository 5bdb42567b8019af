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
 * Removes one turn. The turns after it move to its parent. Returns a function that puts the turn
 * back and returns whether its place still exists.
 */
export function remove(conversation, turn) {
  const { turns } = conversation;
  const at = turns.indexOf(turn);
  const parent = turns[turn.parent] ?? null;
  const children = turns.filter((other) => other.parent === at);
  const next = turns[turn.next] ?? null;
  const wasShown = shownAfter(conversation, parent) === turn;
  relink(conversation, (links) => {
    links.parents.delete(turn);
    for (const child of children) links.parents.set(child, parent);
    if (!wasShown) return;
    const siblings = turns.filter((other) => links.parents.has(other) && links.parents.get(other) === parent);
    links.shown.set(parent, next ?? siblings.at(-1) ?? null);
  });
  return () => putBack(conversation, { turn, at, parent, children, next, wasShown });
}

function putBack(conversation, { turn, at, parent, children, next, wasShown }) {
  if (parent && !conversation.turns.includes(parent)) return false;
  relink(conversation, (links) => {
    const own = children.filter((child) => links.parents.has(child) && links.parents.get(child) === parent);
    // The turn comes after its parent and before its children.
    const first = own.reduce((least, child) => Math.min(least, links.turns.indexOf(child)), links.turns.length);
    links.turns.splice(Math.max(links.turns.indexOf(parent) + 1, Math.min(at, first)), 0, turn);
    links.parents.set(turn, parent);
    for (const child of own) links.parents.set(child, turn);
    links.shown.set(turn, own.includes(next) ? next : (own.at(-1) ?? null));
    const shown = links.shown.get(parent) ?? null;
    if (wasShown || own.includes(shown)) links.shown.set(parent, turn);
  });
  return true;
}

const shownAfter = ({ first, turns }, parent) => turns[parent ? parent.next : first] ?? null;

/**
 * Changes the links between turns, and numbers the turns again. `change` gets the `turns`, their
 * `parents`, and the turn that is `shown` after each, where `null` stands for the place before the
 * first turn. A turn without an entry in `parents` is left out.
 */
function relink(conversation, change) {
  const { turns } = conversation;
  const links = {
    turns: [...turns],
    parents: new Map(turns.map((turn) => [turn, turns[turn.parent] ?? null])),
    shown: new Map([null, ...turns].map((turn) => [turn, shownAfter(conversation, turn)])),
  };
  change(links);
  const left = links.turns.filter((turn) => links.parents.has(turn));
  const numbers = new Map(left.map((turn, index) => [turn, index]));
  const numberOf = (turn) => numbers.get(turn) ?? NONE;
  for (const turn of left) Object.assign(turn, { parent: numberOf(links.parents.get(turn)), next: numberOf(links.shown.get(turn)) });
  conversation.first = numberOf(links.shown.get(null));
  conversation.turns = left;
}

/** Returns the turns of a conversation that come after `turn`, in all branches. */
export function after({ turns }, turn) {
  const found = new Set([turn]);
  // Parents come before their children.
  for (const other of turns) if (found.has(turns[other.parent])) found.add(other);
  found.delete(turn);
  return [...found];
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
