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
  diamond: "M6 .4L11.6 6 6 11.6.4 6z",
  "triangle-down": "M6 11L.6 1.2h10.8z",
  cross: "M4.2.8h3.6v3.4h3.4v3.6H7.8v3.4H4.2V7.8H.8V4.2h3.4z",
  x: "M2.8.6L6 3.8 9.2.6l2.2 2.2L8.2 6l3.2 3.2-2.2 2.2L6 8.2l-3.2 3.2L.6 9.2 3.8 6 .6 2.8z",
  star: "M6 .4l1.7 3.7 4 .5-3 2.7.8 4L6 9.3 2.5 11.3l.8-4-3-2.7 4-.5z",
};

/** A SPEC in pieces: it breaks after a comma before it breaks inside a word. */
function specParts(spec) {
  return str(spec).split(/(?<=[:,])/).flatMap((part) => [part, make("wbr")]);
}

function colorOf(index) {
  return PALETTE.colors[index % PALETTE.colors.length];
}

/** The coloured shape that stands for a variant everywhere. */
function marker(index) {
  const at = Number.isInteger(index) && index >= 0 ? index : 0;
  const lap = Math.floor(at / PALETTE.colors.length);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("class", "ckv-marker");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", MARKER_PATHS[PALETTE.markers[(at + lap) % PALETTE.markers.length]]);
  path.setAttribute("fill", colorOf(at));
  svg.append(path);
  return svg;
}

function chip(text, tone = "") {
  return make("span", { class: `ckv-chip ${tone ? `ckv-${tone}` : ""}`, text: str(text) });
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

/** Quote a CSV field; a text that a spreadsheet would run as a formula is defused. */
function csvField(value) {
  const text = str(value);
  const isNumber = typeof value === "number" || /^-[\d.,]+\s*%?$/.test(text);
  const risky = !isNumber && /^\s*[=+@\t\r\n\-\uff1d\uff0b\uff0d\uff20]/.test(text);
  return `"${(risky ? `'${text}` : text).replaceAll('"', '""')}"`;
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
