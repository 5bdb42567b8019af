// Conversations in the browser's IndexedDB. Where that is not allowed they live as long as the page.

const NAME = "millrace";
const TABLE = "conversations";

/** The database, or `null` where the browser has none for this page. */
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

/** Tells the other windows of this page which conversation has changed. */
const channel = "BroadcastChannel" in window ? new BroadcastChannel("millrace.conversations") : null;

/** Runs `work` on the table and resolves to its result when it is safely written. */
async function run(mode, work) {
  const db = await database;
  if (!db) return null;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(TABLE, mode);
    const request = work(transaction.objectStore(TABLE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error);
  });
}

/** Whether conversations outlive the page. */
export const isLasting = async () => (await database) !== null;

/** All conversations that are kept. */
export const readAll = async () => (await run("readonly", (table) => table.getAll())) ?? [];

/** Writes a conversation in place of the one with its id. Probabilities of tokens are not kept: they would be most of it. */
export async function write({ id, title, created, updated, first, turns }) {
  const kept = turns.map(({ tokens, ...turn }) => turn);
  await run("readwrite", (table) => table.put({ id, title, created, updated, first, turns: kept }));
  channel?.postMessage(id);
}

/** Forgets a conversation. */
export async function erase(id) {
  await run("readwrite", (table) => table.delete(id));
  channel?.postMessage(id);
}

/** Calls `changed(id, conversation)` when another window has written one, with `null` when it has erased it. */
export function watchOthers(changed) {
  channel?.addEventListener("message", async ({ data: id }) => {
    changed(id, (await run("readonly", (table) => table.get(id))) ?? null);
  });
}
