// Sets the light or dark theme before the first paint. By default the system's theme is used.
"use strict";

(() => {
  const KEY = "millrace.theme";
  const root = document.documentElement;
  const asked = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const show = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  show(asked());

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const label = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    };
    button.addEventListener("click", () => {
      const theme = isDark() ? "light" : "dark";
      show(theme);
      try { localStorage.setItem(KEY, theme); } catch { /* It holds for this visit. */ }
      label();
    });
    dark.addEventListener("change", label);
    label();
  });
})();
