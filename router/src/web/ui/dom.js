// Elements and browser storage. Texts become text nodes, never HTML.

/**
 * Creates an element. Properties whose names begin with `on` are listeners, others are attributes
 * unless they are false. Children are nodes or texts.
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Returns the element with this id. */
export const byId = (id) => document.getElementById(id);

/** Creates a button that shows for a short time that its action is done. */
export function copyButton(text, label = "Copy") {
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

/** Copies a text. Pages without TLS have no clipboard API, unless their origin is this machine. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "off-screen", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

/**
 * A value with this name in a storage of the browser. If storage is forbidden, nothing is stored.
 */
export function kept(storage, name) {
  return {
    get() {
      try { return JSON.parse(window[storage].getItem(name)); } catch { return null; }
    },
    set(value) {
      try { window[storage].setItem(name, JSON.stringify(value)); } catch { /* Full or forbidden. */ }
    },
  };
}
