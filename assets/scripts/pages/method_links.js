// Links within the Methods page; the base address of Gradio's pages would lead `#name` elsewhere.

import figures from "./kept_figures.js";

const go = (hash) => {
  const card = document.getElementById(hash.slice(1));
  card?.scrollIntoView();
  card?.focus({ preventScroll: true });
};

export default function mount({ element }) {
  figures(element);
  element.addEventListener("click", (event) => {
    const link = event.target.closest("nav a");
    if (!link) return;
    event.preventDefault();
    history.replaceState(history.state, "", location.pathname + location.search + link.hash);
    go(link.hash);
  });
  go(location.hash);
}
