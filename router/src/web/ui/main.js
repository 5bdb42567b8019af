// Connects the parts of the page.

import { address, fetchJson } from "./api.js";
import { attachments } from "./attach.js";
import { chatView } from "./chat.js";
import { byId, copyButton, el } from "./dom.js";
import { showContext, showFacts } from "./facts.js";
import { openHistory } from "./history.js";
import { library } from "./library.js";
import { watch } from "./live.js";
import { openPanel, showTab, uncover } from "./panel.js";
import { request } from "./request.js";
import { apiKey, check, complain, fitSettings, openSettings, setSystem, settings } from "./settings.js";
import { fitSides } from "./sides.js";
import { curl, javascript, python } from "./snippets.js";
import { wrapButton } from "./wrap.js";

/** The properties of the server, until they have been fetched. */
let server = {
  model: "", has_chat_template: true, needs_key: false, grammar: true, max_total_tokens: null, max_stop_sequences: 4,
  max_top_n_tokens: 5, info: null,
};

const draft = byId("draft");
const go = byId("go");

const chat = chatView(prepare, {
  key: apiKey,
  wantsTokens: () => settings().probabilities,
  isPlain: () => settings().mode === "completion",
  wantsKey: () => {
    byId("key-row").hidden = false;
    showTab("settings");
    byId("key").focus();
  },
  changed: update,
  keep: (conversation) => conversations.keep(conversation),
  system: () => (settings().mode === "completion" ? "" : settings().system),
  setSystem,
});

const conversations = library({
  shown: chat.conversation,
  isBusy: chat.isRunning,
  open: chat.show,
  changed: () => history.draw(),
  trouble(text) {
    byId("keeping").textContent = text;
    byId("keeping").hidden = text === "";
  },
});

const history = openHistory(conversations, chat.conversation);
const files = attachments(update);

/**
 * Returns the request for the next answer, or null if a setting is invalid, which is then marked.
 */
function prepare(turns) {
  if (!check(server)) {
    showTab("settings");
    complain();
    return null;
  }
  return request(turns, settings(), server);
}

function send() {
  const text = draft.value;
  if (chat.isRunning() || (text.trim() === "" && files.files().length === 0)) return;
  if (!chat.send(text, files.files())) return;
  draft.value = "";
  files.clear();
  uncover();
  draft.focus();
  update();
}

/** Updates the parts that depend on the conversation, the draft and the settings. */
function update() {
  const { mode } = settings();
  go.textContent = chat.isRunning() ? "Stop" : "Send";
  go.classList.toggle("stop", chat.isRunning());
  draft.placeholder = mode === "completion" ? "A text to continue" : "Write a message";
  byId("chat-only").hidden = mode === "completion";
  byId("clear").disabled = chat.turns().length === 0;
  // The tokens of an answer are counted when it is complete.
  if (!chat.isRunning()) showContext(chat.turns(), server.info);
  showRequest();
}

const SNIPPETS = { curl, python, javascript };

/**
 * The request that Send would make now, or the request for the last answer if the draft is empty.
 */
function showRequest() {
  if (!byId("view-request").checkVisibility()) return;
  const turns = chat.turns();
  const text = draft.value;
  const attached = files.files();
  if (text.trim() !== "" || attached.length) turns.push({ role: "user", content: text, files: attached });
  else if (turns.length === 0) turns.push({ role: "user", content: "Hello!" });
  else if (turns.at(-1).role === "assistant") turns.pop();
  const asked = request(turns, settings(), server);
  byId("route").textContent = `POST /${asked.path}`;
  for (const [name, write] of Object.entries(SNIPPETS)) {
    byId(`snippet-${name}`).textContent = write(asked, address(""), apiKey() !== "");
  }
}

/** Suggestions for the demo model, which can do only these, and for other models. */
const EXAMPLES = ["Tell me a story about a fox and a lantern.", "What is 23 + 48?", "Mia has a red ball. Who has the red ball?"];

async function learn({ status }) {
  const [known, info] = await Promise.all([fetchJson("ui/server.json"), status === "ready" ? fetchJson("info") : null]);
  // The server may have begun to load again meanwhile, and then tells an error.
  server = { ...known, info: info?.model_id ? info : null };
  showFacts(server.info);
  byId("model").textContent = server.model;
  document.title = `${server.model} \u00b7 Millrace`;
  byId("version").textContent = `Millrace ${server.version}`;
  fitSettings(server);
  byId("examples").replaceChildren(...(server.model === "demo" ? EXAMPLES : []).map((text) => {
    const use = () => {
      draft.value = text;
      draft.focus();
      update();
    };
    return el("button", { type: "button", onclick: use }, text);
  }));
  update();
}

const STATES = {
  ready: ["good", "Ready"],
  loading: ["busy", "Loading"],
  recovering: ["busy", "Recovering"],
  draining: ["bad", "Shutting down"],
  failed: ["bad", "Failed"],
  unreachable: ["bad", "Not reachable"],
};

function showStatus(state) {
  const [kind, word] = STATES[state.status] ?? ["bad", state.status];
  const share = state.total_bytes > 0 ? state.done_bytes / state.total_bytes : null;
  const badge = byId("status");
  badge.dataset.kind = kind;
  const text = share === null ? word : `${word} ${Math.floor(100 * share)} %`;
  if (badge.textContent !== text) badge.textContent = text;
  byId("loading").hidden = state.status !== "loading";
  byId("loading-phase").textContent = state.phase ?? "";
  const bar = byId("loading-bar");
  if (share === null) bar.removeAttribute("value");
  else bar.value = share;
  byId("trouble").hidden = !TROUBLE[state.status];
  byId("trouble").textContent = TROUBLE[state.status]?.(state) ?? "";
}

const TROUBLE = {
  unreachable: () => "The server cannot be reached. This page looks for it every second and goes on when it is back.",
  recovering: () => "The model is being started again after a loss. Answers that had begun will go on.",
  draining: () => "The server is shutting down and takes no more requests.",
  failed: (state) => `The server has failed: ${state.error}`,
};

openPanel(showRequest);
openSettings(() => {
  check(server);
  chat.fitSystem();
  update();
});
fitSides();
byId("probabilities-wanted").addEventListener("change", chat.redraw);
chat.redraw();
update();
conversations.load();
watch({ back: (state) => learn(state).catch(() => {}), status: showStatus });

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chat.isRunning()) chat.stop();
  else send();
});
draft.addEventListener("input", update);
draft.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (chat.isRunning()) chat.stop();
  else if (!history.uncover()) uncover();
});
byId("clear").addEventListener("click", () => {
  conversations.create();
  history.uncover();
  draft.focus();
});
for (const name of Object.keys(SNIPPETS)) {
  byId(`copy-${name}`).replaceWith(wrapButton(), copyButton(() => byId(`snippet-${name}`).textContent));
}
