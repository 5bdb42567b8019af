// The two sides of the page: the conversations and the panel. In a narrow window a side covers the
// conversation, and below the width for both, opening one closes the other.

import { byId, kept } from "./dom.js";

/** Windows in which a side covers the conversation. */
const covering = matchMedia("(max-width: 60rem)");

/** Windows that are wide enough for both sides. */
const roomy = matchMedia("(min-width: 1400px)");

/** The sides that the user has opened or closed, and the one that was opened last. */
const memory = kept("localStorage", "millrace.sides");

const sides = [];

/**
 * Connects a side to its buttons and returns it.
 *
 * @param names `side`, `open` and `close`: the ids of the side and of its buttons
 * @param hooks `first()` returns the element that has the focus after opening, and `changed()` is
 * called when the side has been opened or closed
 */
export function side(names, hooks) {
  const element = byId(names.side);
  const button = byId(names.open);
  const isOpen = () => !element.hidden;

  function show(opens) {
    if (isOpen() === opens) return;
    element.hidden = !opens;
    button.setAttribute("aria-expanded", opens);
    hooks.changed();
  }

  /** Opens or closes the side for the user, and moves the focus. */
  function toggle(opens) {
    if (opens && !roomy.matches) for (const other of sides) if (other !== self) other.show(false);
    show(opens);
    if (!covering.matches) memory.set({ ...memory.get(), [names.side]: opens, ...(opens ? { last: names.side } : {}) });
    if (opens) hooks.first().focus();
    else button.focus();
  }

  button.addEventListener("click", () => toggle(!isOpen()));
  byId(names.close).addEventListener("click", () => toggle(false));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    // Escape first empties the field of a search.
    const empties = event.target.type === "search" && event.target.value !== "";
    if (!empties) toggle(false);
  });

  const self = {
    name: names.side,
    show,
    isOpen,
    open: () => isOpen() || toggle(true),
    /** Closes the side if it covers the conversation, and returns whether it did. */
    uncover() {
      const covers = covering.matches && isOpen();
      if (covers) toggle(false);
      return covers;
    },
  };
  sides.push(self);
  return self;
}

/** Opens the sides that fit into the window, now and whenever its width changes. */
export function fitSides() {
  for (const width of [covering, roomy]) width.addEventListener("change", fit);
  fit();
}

function fit() {
  const chosen = memory.get() ?? {};
  const wanted = sides.filter(({ name }) => !covering.matches && (chosen[name] ?? true));
  const last = wanted.find(({ name }) => name === (chosen.last ?? "panel")) ?? wanted[0];
  for (const each of sides) each.show(roomy.matches ? wanted.includes(each) : each === last);
}
