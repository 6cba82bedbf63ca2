// The Methods page: its links, and its figures of which parts of a text a method keeps, beside another one.

import { make, shape } from "../dom.js";

const HEIGHT = 44; // of a bar that is full

/** The heights, 0 to 1, of bars that are written as two hexadecimal digits each. */
const read = (text) => (text.match(/../g) ?? []).map((digits) => Number.parseInt(digits, 16) / 255);

/** One outline of all bars; up is -1 or 1, from the line at y = 0. */
function outline(heights, up) {
  const steps = heights.map((height, at) => `L${at} ${(up * height * HEIGHT).toFixed(2)}h1`);
  return `M0 0${steps.join("")}L${heights.length} 0Z`;
}

const keptBy = (figure, share) => JSON.parse(figure.dataset.kept)[share];

/** The method upwards and, but for that itself, what it is drawn beside downwards. */
function draw(figure, beside, share) {
  const kept = keptBy(figure, share);
  const above = read(kept.bars);
  const below = beside ? read(keptBy(beside, share).bars) : [];
  const down = below.length ? HEIGHT : 0;
  const plot = shape("svg", {
    viewBox: `0 ${-HEIGHT} ${above.length} ${HEIGHT + down}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
    style: `height: ${HEIGHT + down}px`,
  });
  plot.append(shape("path", { d: outline(above, -1), class: "ckv-kept-above" }));
  if (down) plot.append(shape("path", { d: outline(below, 1), class: "ckv-kept-below" }));
  plot.append(shape("path", { d: `M0 0H${above.length}`, class: "ckv-kept-line" }));
  const mentions = JSON.parse(figure.dataset.mentions).map((at) =>
    make("span.ckv-kept-answer", { style: `left: ${100 * at}%`, text: "▼" }),
  );
  const box = make("div.ckv-kept-plot", { "aria-hidden": "true" }, [
    make("span.ckv-hint.ckv-kept-name", `↑ ${figure.dataset.label}, ${share} %`),
    ...mentions,
    plot,
    down ? make("span.ckv-hint.ckv-kept-name", `↓ ${beside.dataset.label}, ${share} %`) : null,
  ]);
  figure.querySelector(".ckv-kept-plot")?.remove();
  figure.prepend(box);
  figure.querySelector("figcaption").textContent = kept.message;
}

function figures(element) {
  const all = [...element.querySelectorAll(".ckv-kept")];
  const chosen = () => element.querySelector('input[name="ckv-kept-share"]:checked')?.value;
  const besides = all.map(({ dataset }) => dataset.beside && element.querySelector(`#method-${dataset.beside} .ckv-kept`));
  const show = () => {
    for (const [at, figure] of all.entries()) draw(figure, besides[at], chosen());
  };
  element.querySelector(".ckv-kept-budget")?.addEventListener("change", show);
  show();
}

// Links within the page; the base address of Gradio's pages would lead `#name` elsewhere.
const go = (hash) => {
  const target = document.getElementById(hash.slice(1));
  const fold = target?.closest("details");
  if (fold) fold.open = true;
  target?.scrollIntoView();
  const part = target?.querySelector(":scope > summary") ?? target;
  if (part instanceof HTMLElement) part.focus({ preventScroll: true });
};

export default function mount({ element }) {
  figures(element);
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest('a[href^="methods#"]');
    if (!(link instanceof HTMLAnchorElement) || !element.isConnected) return;
    event.preventDefault();
    history.replaceState(history.state, "", location.pathname + location.search + link.hash);
    go(link.hash);
  });
  go(location.hash);
}
