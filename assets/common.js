// Shared by all components: DOM building with text only, markers, numbers, clipboard.

const root = element.querySelector(".ckv");
const SVG = "http://www.w3.org/2000/svg";

/** Make an element; `props` are attributes, `on*` listeners, or `text`; no HTML ever. */
function make(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Write text only when it changed, so that streaming does not disturb a selection. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const list = (value) => (Array.isArray(value) ? value : []);
const str = (value) => (value === null || value === undefined ? "" : String(value));
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const whole = (value) => Math.round(value).toLocaleString("en-US");
/** Words for fingers, or for a mouse and keys. */
const byTouch = (touch, mouse) => (matchMedia("(hover: none)").matches ? touch : mouse);
const isDark = () => document.body.classList.contains("dark");

/** A share as percent, with one decimal where it is small. */
function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)}%`;
}

function seconds(value) {
  if (!Number.isFinite(value)) return "";
  if (value < 60) return `${value.toFixed(1)} s`;
  return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
}

function milliseconds(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value)} ms`;
}

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
  "star-triangle-up": "M6 .4C6 5 8 8.6 11.6 10.6 8 9.4 4 9.4.4 10.6 4 8.6 6 5 6 .4z",
  hexagon2: "M.6 6l2.7-4.8h5.4L11.4 6l-2.7 4.8H3.3z",
};

/** A SPEC in pieces: it breaks after a comma before it breaks inside a word. */
function specParts(spec) {
  return str(spec).split(/(?<=[:,])/).flatMap((part) => [part, make("wbr")]);
}

/** An SVG element with these attributes. */
function shape(tag, fields) {
  const node = document.createElementNS(SVG, tag);
  Object.entries(fields).forEach(([name, value]) => node.setAttribute(name, value));
  return node;
}

/** The coloured shape that stands for a variant everywhere: filled, open, with a dot or a hole. */
function marker(look) {
  const { color, symbol } = { color: "gray", symbol: "circle", ...look };
  const open = symbol.includes("-open");
  const path = MARKER_PATHS[symbol.replace(/(-open)?(-dot)?$/, "")] ?? MARKER_PATHS.circle;
  const svg = shape("svg", { viewBox: "-1 -1 14 14", class: "ckv-marker", "aria-hidden": "true" });
  svg.append(shape("path", { d: path, fill: open ? "none" : color, stroke: color, "stroke-width": open ? 2 : 0 }));
  if (symbol.includes("-dot")) svg.append(shape("circle", { cx: 6, cy: 6, r: 1.7, class: open ? "" : "ckv-hole", fill: color }));
  return svg;
}

/** Stops of differences, the lower side first: the middle is the page's ground, light or dark. */
const divergingStops = () => (isDark() ? PALETTE.divergingDark : PALETTE.diverging);

/** At the head of what ranks methods of both regimes; hidden where there is nothing to say. */
const regimesHead = () => make("p", { class: "ckv-regimes", hidden: true });

function setRegimes(node, told) {
  setText(node, told ? str(told) : "");
  node.hidden = !told;
}

/** Which regime a row is of. */
function regimeMark(regime) {
  return regime ? make("span", { class: "ckv-regime", "data-regime": str(regime), text: str(regime) }) : null;
}

function chip(text, tone = "") {
  return make("span", { class: `ckv-chip ${tone ? `ckv-${tone}` : ""}`, text: str(text) });
}

/** Words of the glossary, written [[KV head]] or [[KV head|heads]], as buttons that terms.js serves; plain words in a report. */
function withTerms(text) {
  return str(text).split(/(\[\[[^\]]+\]\])/).map((part) => {
    if (!part.startsWith("[[")) return part;
    const [word, shown] = part.slice(2, -2).split("|");
    if (!window.ckvWords) return shown ?? word;
    return make("button", { type: "button", class: "ckv-term", value: word, text: shown ?? word, "aria-label": `${shown ?? word}, explain` });
  });
}

/** Copy text; the old command is for pages served without TLS. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "ckv-offscreen", "aria-hidden": "true" });
    area.value = text;
    root.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** One CSV field on one line, which no spreadsheet runs as a formula; as ui/tables/csv_text.py does. */
function csvField(value) {
  const escaped = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };
  const hex = (code) => (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16)}`);
  const line = str(value).replace(/[\0-\x1f\x7f-\x9f\u2028\u2029\p{Cs}]/gu, (found) => escaped[found] ?? hex(found.charCodeAt(0)));
  const isNumber = typeof value === "number" || /^-[0-9.,]+\s*%?$/.test(line);
  const safe = isNumber ? line : line.replace(/(^|;)(?=[\s\u200b-\u200f\u2060\ufeff]*[-=+@\uff0d\uff1d\uff0b\uff20])/g, "$1'");
  return `"${safe.replaceAll('"', '""')}"`;
}

/** Give the reader lines of fields as a CSV file. */
function downloadCsv(lines, name) {
  const text = `${lines.map((line) => line.map(csvField).join(",")).join("\r\n")}\r\n`;
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Draw now and after each update from the server; say so in data-ready for the tests. */
function onValue(draw) {
  const run = () => {
    draw(props.value && typeof props.value === "object" ? props.value : null);
    element.dataset.ready = "1";
  };
  run();
  watch("value", run);
}

/** Columns of a grid of `count` cards, so that rows are about equally full: 5 are 3 + 2. */
function balanceColumns(grid, count) {
  const rows = Math.max(1, Math.ceil(count / 4));
  grid.style.setProperty("--ckv-columns", String(Math.max(1, Math.ceil(count / rows))));
}
