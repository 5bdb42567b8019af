// All conversations of this browser, and the operations on them.

import { kept } from "./dom.js";
import { erase, isLasting, readAll, watchOthers, write } from "./store.js";
import { newConversation, titleOf } from "./tree.js";

/**
 * The most conversations, and the most characters of one and of all of them. The page holds them in
 * memory.
 */
export const BOUNDS = { conversations: 500, one: 8_000_000, all: 64_000_000 };

const shown = kept("sessionStorage", "millrace.conversation");

/**
 * @param hooks `changed()` after each change of the list, `open(conversation)` to show one,
 * `shown()` for the one that is shown, `isBusy()` while it is answered, `trouble(text)` if a
 * conversation cannot be saved, with `""` when it can be saved again
 */
export function library(hooks) {
  const all = new Map();
  // The number of characters of each conversation, by id.
  const lengths = new Map();

  function forget(id) {
    all.delete(id);
    lengths.delete(id);
  }

  function know(conversation) {
    all.set(conversation.id, conversation);
    lengths.set(conversation.id, lengthOf(conversation));
  }

  /**
   * Saves a conversation, unless it has no turns. Resolves to whether it is saved, at least in
   * memory.
   */
  async function keep(conversation) {
    if (conversation.turns.length === 0 && all.has(conversation.id)) {
      // The last turn was deleted, and the stored copy still has it.
      forget(conversation.id);
      hooks.changed();
      await store(() => erase(conversation.id));
    }
    if (conversation.turns.length === 0 || deleted.has(conversation.id)) return false;
    const length = lengthOf(conversation);
    const refusal = refused(conversation, length);
    if (refusal) {
      latest += 1;
      hooks.trouble(refusal);
      return false;
    }
    know(conversation);
    if (conversation === hooks.shown()) shown.set(conversation.id);
    hooks.changed();
    await store(() => write(conversation));
    return true;
  }

  /** The reason why a conversation of this length is not saved, or `null`. */
  function refused({ id }, length) {
    const { conversations, one } = BOUNDS;
    if (!all.has(id) && all.size >= conversations) return `This browser keeps ${conversations} conversations, and this one is not kept. Export and delete others to make room.`;
    if (length > one) return "This conversation has become too long to be kept: what is new in it is gone with this page.";
    let sum = length - (lengths.get(id) ?? 0);
    for (const other of lengths.values()) sum += other;
    return sum > BOUNDS.all ? "There is no room for more conversations, and this one is not kept. Export and delete others to make room." : null;
  }

  /** Ids of conversations that were deleted while they were being answered. */
  const deleted = new Set();

  // The number of the latest attempt to save. An earlier one that ends later must not remove its
  // message.
  let latest = 0;

  async function store(work) {
    const attempt = ++latest;
    try {
      await work();
      const text = (await isLasting()) ? "" : "This browser does not let the page keep conversations: they end with this page.";
      if (attempt === latest) hooks.trouble(text);
    } catch (error) {
      const isFull = error?.name === "QuotaExceededError";
      hooks.trouble(isFull ? "The browser has no more space for conversations. Export and delete some." : "The browser could not keep this conversation.");
    }
  }

  function open(conversation) {
    shown.set(conversation.id);
    hooks.open(conversation);
    hooks.changed();
  }

  watchOthers((id, conversation) => {
    if (conversation) know(conversation);
    else forget(id);
    if (conversation && hooks.shown().id === id && !hooks.isBusy()) hooks.open(conversation);
    hooks.changed();
  });

  return {
    keep,
    open,
    create: () => open(newConversation()),
    /** Loads the conversations, and opens the one that this window has shown last. */
    async load() {
      await store(async () => {
        for (const conversation of await readAll()) if (!all.has(conversation.id)) know(conversation);
      });
      const last = all.get(shown.get());
      if (last && hooks.shown().turns.length === 0) hooks.open(last);
      hooks.changed();
    },
    /** The conversations with these words in their titles or turns, the newest first. */
    found(words) {
      const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
      const list = [...all.values()].sort((a, b) => b.updated - a.updated);
      return wanted.length === 0 ? list : list.filter((conversation) => matches(conversation, wanted));
    },
    rename(conversation, title) {
      conversation.title = title.trim().slice(0, 200);
      return keep(conversation);
    },
    remove(conversation) {
      deleted.add(conversation.id);
      forget(conversation.id);
      if (hooks.shown() === conversation) open(newConversation());
      hooks.changed();
      return store(() => erase(conversation.id));
    },
    /** Restores a conversation that was removed. */
    restore(conversation) {
      deleted.delete(conversation.id);
      return keep(conversation);
    },
    /**
     * Adds conversations from a file and returns the counts `{ added, known, left }`. Conversations
     * that exist already stay as they are, and those beyond the limits are left out.
     */
    async add(conversations) {
      const isKnown = ({ id, updated }) => all.get(id)?.updated === updated;
      const fresh = conversations.filter((conversation) => !isKnown(conversation));
      const room = Math.max(0, BOUNDS.conversations - all.size);
      if (fresh.length > room) throw new Error(`This browser keeps ${BOUNDS.conversations} conversations: there is room for ${room} more, and the file has ${fresh.length}.`);
      let added = 0;
      for (const conversation of fresh) {
        // A different conversation with the same id is not overwritten.
        if (all.has(conversation.id)) conversation.id = newConversation().id;
        deleted.delete(conversation.id);
        added += Number(await keep(conversation));
      }
      return { added, known: conversations.length - fresh.length, left: fresh.length - added };
    },
  };
}

const lengthOf = ({ turns }) => turns.reduce((sum, { content, reasoning, files }) => sum + content.length + (reasoning?.length ?? 0) + (files ?? []).reduce((all, { text }) => all + text.length, 0), 0);

function matches(conversation, wanted) {
  const title = titleOf(conversation).toLowerCase();
  const texts = conversation.turns.map(({ content }) => content.toLowerCase());
  return wanted.every((word) => title.includes(word) || texts.some((text) => text.includes(word)));
}
