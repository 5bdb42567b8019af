// All conversations of this browser: which there are, which one is shown, and what can be done with them.

import { kept } from "./dom.js";
import { erase, isLasting, readAll, watchOthers, write } from "./store.js";
import { newConversation, titleOf } from "./tree.js";

/** Conversations that are kept. */
const MOST = 500;

/** Characters of a conversation that is kept. */
const LONGEST = 8_000_000;

const shown = kept("sessionStorage", "millrace.conversation");

/**
 * @param hooks `changed()` after each change of the list, `open(conversation)` to show one, `shown()` the one that is shown,
 * `isBusy()` while it is answered, `trouble(text)` if something cannot be kept, or `""` when it can be again
 */
export function library(hooks) {
  const all = new Map();

  /** Writes a conversation; without turns there is nothing to keep. */
  async function keep(conversation) {
    if (conversation.turns.length === 0 || deleted.has(conversation.id)) return;
    const isNew = !all.has(conversation.id);
    if (isNew && all.size >= MOST) return hooks.trouble(`This browser keeps ${MOST} conversations, and this one is not kept. Export and delete others to make room.`);
    if (lengthOf(conversation) > LONGEST) return hooks.trouble("This conversation has become too long to be kept: what is new in it is gone with this page.");
    all.set(conversation.id, conversation);
    if (conversation === hooks.shown()) shown.set(conversation.id);
    hooks.changed();
    await store(() => write(conversation));
  }

  /** Ids of conversations that were deleted while an answer was on its way to them. */
  const deleted = new Set();

  async function store(work) {
    try {
      await work();
      hooks.trouble((await isLasting()) ? "" : "This browser does not let the page keep conversations: they end with this page.");
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
    if (conversation) all.set(id, conversation);
    else all.delete(id);
    if (conversation && hooks.shown().id === id && !hooks.isBusy()) hooks.open(conversation);
    hooks.changed();
  });

  return {
    keep,
    open,
    create: () => open(newConversation()),
    /** Reads what is kept, and opens what this window has shown last. */
    async load() {
      await store(async () => {
        for (const conversation of await readAll()) if (!all.has(conversation.id)) all.set(conversation.id, conversation);
      });
      const last = all.get(shown.get());
      if (last && hooks.shown().turns.length === 0) hooks.open(last);
      hooks.changed();
    },
    /** Those with these words in their title or turns, the newest first. */
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
      all.delete(conversation.id);
      if (hooks.shown() === conversation) open(newConversation());
      hooks.changed();
      return store(() => erase(conversation.id));
    },
    /** Brings back what was removed. */
    restore(conversation) {
      deleted.delete(conversation.id);
      return keep(conversation);
    },
    /** Adds conversations from a file: `{ added, known }`. Those that are here already stay as they are. */
    async add(conversations) {
      const isKnown = ({ id, updated }) => all.get(id)?.updated === updated;
      const fresh = conversations.filter((conversation) => !isKnown(conversation));
      if (all.size + fresh.length > MOST) throw new Error(`This browser keeps ${MOST} conversations: there is room for ${MOST - all.size} more, and the file has ${fresh.length}.`);
      for (const conversation of fresh) {
        // Another conversation with the same id, or another state of it, is not overwritten.
        if (all.has(conversation.id)) conversation.id = newConversation().id;
        deleted.delete(conversation.id);
        await keep(conversation);
      }
      return { added: fresh.length, known: conversations.length - fresh.length };
    },
  };
}

const lengthOf = ({ turns }) => turns.reduce((sum, { content, reasoning, files }) => sum + content.length + (reasoning?.length ?? 0) + (files ?? []).reduce((all, { text }) => all + text.length, 0), 0);

function matches(conversation, wanted) {
  const title = titleOf(conversation).toLowerCase();
  const texts = conversation.turns.map(({ content }) => content.toLowerCase());
  return wanted.every((word) => title.includes(word) || texts.some((text) => text.includes(word)));
}
