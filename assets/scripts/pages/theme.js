// The page's theme, before anything is drawn: `__theme` of an address for this tab, else what the switch chose, else the system's.

(() => {
  const KEY = "ckv-theme";
  const THEMES = ["system", "light", "dark"];
  const page = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const requested = new URLSearchParams(location.search).get("__theme");
  if (requested !== null) sessionStorage.setItem(KEY, requested);

  function chosen() {
    const theme = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
    return THEMES.find((each) => each === theme) ?? "system";
  }

  function apply() {
    const theme = chosen();
    const isDark = theme === "dark" || (theme === "system" && system.matches);
    page.dataset.theme = theme;
    page.style.colorScheme = isDark ? "dark" : "light"; // the ground until the style sheets come
    document.body?.classList.toggle("dark", isDark);
    // Else Gradio would follow the address or the system.
    document.querySelector("gradio-app")?.setAttribute("theme_mode", isDark ? "dark" : "light");
  }

  /** The switch goes to the next theme, on all pages of this browser. */
  function next() {
    const theme = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    localStorage.setItem(KEY, theme);
    sessionStorage.removeItem(KEY);
    const address = new URL(location.href);
    address.searchParams.delete("__theme");
    history.replaceState(history.state, "", address);
    apply();
  }

  apply();
  const parts = new MutationObserver(apply);
  parts.observe(page, { childList: true, subtree: true });
  document.addEventListener("DOMContentLoaded", () => parts.disconnect());
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("click", ({ target }) => {
    if (target instanceof Element && target.closest(".ckv-theme")) next();
  });
})();
