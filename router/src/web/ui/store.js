// Stores conversations in the browser's IndexedDB, or in memory if that is forbidden.

const NAME = "millrace";
const TABLE = "conversations";

/** The database, or `null` if the browser forbids it for this page. */
const database = new Promise((resolve) => {
  try {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = opening.onblocked = () => resolve(null);
  } catch {
    resolve(null);
  }
});

/** Tells other windows of this page which conversation has changed. */
const channel = "BroadcastChannel" in window ? new BroadcastChannel("millrace.conversations") : null;

/** Runs `work` on the table and resolves to its result when the transaction is complete. */
async function run(mode, work) {
  const db = await database;
  if (!db) return null;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(TABLE, mode);
    const request = work(transaction.objectStore(TABLE));
    // Otherwise the transaction waits for this page to see the result, and is undone if the page is
    // closed or reloaded before that.
    transaction.commit();
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error);
  });
}

/** Returns whether conversations are stored beyond the life of the page. */
export const isLasting = async () => (await database) !== null;

/** Returns all conversations. */
export const readAll = async () => (await run("readonly", (table) => table.getAll())) ?? [];

/**
 * Stores a conversation under its id, without the probabilities of tokens, which would take most of
 * the space.
 */
export async function write({ id, title, created, updated, first, turns }) {
  const kept = turns.map(({ tokens, ...turn }) => turn);
  await run("readwrite", (table) => table.put({ id, title, created, updated, first, turns: kept }));
  channel?.postMessage(id);
}

/** Removes a conversation. */
export async function erase(id) {
  await run("readwrite", (table) => table.delete(id));
  channel?.postMessage(id);
}

/**
 * Calls `changed(id, conversation)` when another window stores a conversation, with `null` when it
 * removes one.
 */
export function watchOthers(changed) {
  channel?.addEventListener("message", async ({ data: id }) => {
    changed(id, (await run("readonly", (table) => table.get(id))) ?? null);
  });
}
