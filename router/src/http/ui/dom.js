// Elements from code, and storage that may be forbidden. Text only ever becomes text nodes.

/** An element with properties (`on…` are listeners, others attributes unless false) and children (nodes or texts). */
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

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A button that says shortly that it has done its work. */
export function copyButton(text, label = "Copy") {
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

/** Pages without TLS have no clipboard in the modern way, unless they come from this machine. */
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

/** A value kept under `name` in a storage of the browser; nothing is kept where that is not allowed. */
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
