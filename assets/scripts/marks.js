// The marks of variants and of outcomes, and the colours of shares and differences.

import { make, shape, str } from "./dom.js";

// Differences and log ratios, the lower side first: equal steps of lightness from the middle, which is the
// page's ground. The sides are equally light, so charts and maps also mark the cells of the lower one.
// ui/looks/palette.py reads these lines too.
const DIVERGING_STOPS = "#005389 #0072b9 #5d91cc #94b0da #c5d1e7 #f3f3f3 #e9c9c7 #dba09d #ca7674 #b64b4e #9f132b".split(" ");
const DIVERGING_STOPS_DARK = "#87bcfe #2f9df6 #3a7cbc #395d85 #313f52 #242424 #523736 #834b49 #b75e5e #ee7273 #ff9f9c".split(" ");
export const isDark = () => document.body.classList.contains("dark");

/** Stops of differences, the lower side first: the middle is the page's ground, light or dark. */
export const divergingStops = () => (isDark() ? DIVERGING_STOPS_DARK : DIVERGING_STOPS);

// Shapes in a 12 x 12 box, by their Plotly names.
const MARKER_PATHS = {
  circle: "M6 1a5 5 0 1 0 .01 0z",
  square: "M1.5 1.5h9v9h-9z",
  "triangle-up": "M6 1l5.4 9.8H.6z",
  "triangle-down": "M6 11L.6 1.2h10.8z",
  "triangle-left": "M1 6L10.8.6v10.8z",
  "triangle-right": "M11 6L1.2.6v10.8z",
  diamond: "M6 .4L11.6 6 6 11.6.4 6z",
  "star-diamond": "M6 .4L7.7 4.3 11.6 6 7.7 7.7 6 11.6 4.3 7.7.4 6 4.3 4.3z",
  cross: "M4.2.8h3.6v3.4h3.4v3.6H7.8v3.4H4.2V7.8H.8V4.2h3.4z",
  x: "M2.8.6L6 3.8 9.2.6l2.2 2.2L8.2 6l3.2 3.2-2.2 2.2L6 8.2l-3.2 3.2L.6 9.2 3.8 6 .6 2.8z",
  star: "M6 .4l1.7 3.7 4 .5-3 2.7.8 4L6 9.3 2.5 11.3l.8-4-3-2.7 4-.5z",
  pentagon: "M6 .6l5.4 4-2.1 6.4H2.7L.6 4.6z",
  hexagram: "M6 .4L7.7 3.2h3.2L9.3 6l1.6 2.8H7.7L6 11.6 4.3 8.8H1.1L2.7 6 1.1 3.2h3.2z",
  hexagon: "M6 .6l4.8 2.7v5.4L6 11.4 1.2 8.7V3.3z",
  "star-square": "M.9.9L6 2.7 11.1.9 9.3 6l1.8 5.1L6 9.3.9 11.1 2.7 6z",
  "star-triangle-up": "M6 .4C6 5 8 8.6 11.6 10.6 8 9.4 4 9.4.4 10.6 4 8.6 6 5 6 .4z",
  hexagon2: "M.6 6l2.7-4.8h5.4L11.4 6l-2.7 4.8H3.3z",
};

/** The colour of a look in the page's theme, for a canvas. */
export const hueOf = (look) => str(isDark() ? (look.dark ?? look.color) : look.color);

/** The colour of a look in both themes, for CSS and SVG. */
export const cssHue = (look) => `light-dark(${str(look.color)}, ${str(look.dark ?? look.color)})`;

/** The coloured shape that stands for a variant everywhere: filled, open, with a dot or a hole. */
export function marker(look) {
  const { symbol } = { symbol: "circle", ...look };
  const hue = look?.color ? cssHue(look) : "gray";
  const open = symbol.includes("-open");
  const path = MARKER_PATHS[symbol.replace(/(-open)?(-dot)?$/, "")] ?? MARKER_PATHS.circle;
  const svg = shape("svg", { viewBox: "-1 -1 14 14", class: "ckv-marker", "aria-hidden": "true" });
  svg.append(shape("path", { d: path, fill: open ? "none" : hue, stroke: hue, "stroke-width": open ? 2 : 0 }));
  if (symbol.includes("-dot")) svg.append(shape("circle", { cx: 6, cy: 6, r: 1.7, class: open ? "" : "ckv-hole", fill: hue }));
  return svg;
}

// A word and a glyph in a 12 x 12 box for each outcome of ckv_core.
const OUTCOMES = {
  answered: ["Answered", "M2 6.5l2.7 2.7L10 3.4"],
  missed: ["Missed", "M2.8 2.8l6.4 6.4m0-6.4L2.8 9.2"],
  cut: ["Cut", "M1.5 6h6.5M10.5 2v8"],
  failed: ["Failed", "M6 1.5v5.5M6 10v.2"],
  none: ["No expected answer", ""],
};

/** The glyph of an outcome; null for none. */
export function outcomeGlyph(outcome) {
  const path = OUTCOMES[outcome]?.[1];
  return path ? shape("svg", { viewBox: "0 0 12 12", class: "ckv-glyph", "aria-hidden": "true" }, shape("path", { d: path })) : null;
}

/** An outcome as a pill: glyph, word and tint. `words` say more than the outcome's own word. */
export function outcomeMark(outcome, words = "") {
  const known = outcome in OUTCOMES ? outcome : "none";
  return make("span.ckv-out", { "data-outcome": known }, [outcomeGlyph(known), words || OUTCOMES[known][0]]);
}
