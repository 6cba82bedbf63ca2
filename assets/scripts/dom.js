// What our components share: values from the server, elements that hold text and never HTML, files.

export const list = (value) => (Array.isArray(value) ? value : []);
export const str = (value) => (value === null || value === undefined ? "" : String(value));
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
export const whole = (value) => Math.round(value).toLocaleString("en-US");
/** A share as percent, rounded as in ckv_core/base/percent.py: not 0 or 100 of what is neither. */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  const isNear = (value > 0 && value < 1) || (value > 99 && value < 100);
  return `${value.toFixed(isNear ? 1 : 0)} %`;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element, as in `make("p.ckv-hint", { title }, [text, link])`; no HTML ever.
 *
 * @param {string} name tag and classes
 * @param {...any} parts first an object of attributes, `on*` listeners, `text`, `value` or `checked`, if any; then children, null for none
 */
export function make(name, ...parts) {
  const [tag, ...classes] = name.split(".");
  /** @type {any} */
  const node = document.createElement(tag);
  if (tag === "button") node.type = "button";
  const props = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key === "value" || key === "checked") node[key] = value;
    else if (key === "class") classes.push(...value.split(" ").filter(Boolean));
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  if (classes.length) node.className = classes.join(" ");
  node.append(...parts.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Write text only when it changed, so that streaming does not disturb a selection. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The same of a line that is hidden while there is no text. */
export function showText(node, text) {
  setText(node, str(text));
  node.hidden = !text;
}

export const button = (text, onclick, more = {}) => make("button.ckv-button", { text, onclick, ...more });
export const quietButton = (text, onclick, more = {}) => button(text, onclick, { class: "ckv-quiet", ...more });

/** A choice among [value, label] pairs; `onchange` gets the value. The first one where `chosen` is none of them. */
export function select(options, chosen, onchange, more = {}) {
  const node = make("select.ckv-select", { onchange: () => onchange(node.value), ...more }, [
    options.map(([value, text]) => make("option", { value: String(value), text })),
  ]);
  node.value = String(chosen);
  if (node.selectedIndex < 0) node.selectedIndex = 0;
  return node;
}

/** A button that opens these children in place; Escape, another click and a Tab out of it close them. */
export function menu(summary, ...children) {
  const node = make("details.ckv-menu", summary, ...children);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !node.open) return;
    node.open = false;
    summary.focus();
  });
  node.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !node.contains(relatedTarget)) node.open = false;
  });
  document.addEventListener("pointerdown", ({ target }) => {
    if (!node.contains(target)) node.open = false;
  });
  return node;
}

/**
 * A menu of acts: [text, act] pairs, or a link in their place.
 *
 * @param {string} name of the chart, for readers of the screen
 * @param {Array<[string, () => any] | Node>} items
 */
export function exportMenu(name, items) {
  const item = (each) => (Array.isArray(each) ? make("button.ckv-button.ckv-quiet", { text: each[0], onclick: each[1] }) : each);
  const title = "Save this chart, or read it as a table";
  const summary = make("summary.ckv-button.ckv-quiet", { "aria-label": `Export: ${name}`, title }, "Export");
  const node = menu(summary, make("div.ckv-pop.ckv-export", items.map(item)));
  node.querySelector(".ckv-export").addEventListener("click", () => {
    node.open = false;
  });
  return node;
}

/** Words for fingers, or for a mouse and keys. */
export const byTouch = (touch, mouse) => (matchMedia("(hover: none)").matches ? touch : mouse);
/** A SPEC or a name in pieces: it breaks after a comma before it breaks inside a word, and an alpha keeps its number. */
export function specParts(spec) {
  return str(spec)
    .replace(/ alpha (?=\d)/g, " alpha\u00a0")
    .split(/(?<=[:,])/)
    .flatMap((part) => [part, make("wbr")]);
}

/** Text of a model in pieces [text, kind]: what differs is underlined, an answer bold. */
export const written = (pieces) =>
  list(pieces).map(([text, kind]) => (kind ? make(kind === "answer" ? "b" : "mark", str(text)) : str(text)));

/** An SVG element with these attributes, and children or text. */
export function shape(tag, fields, ...children) {
  const node = document.createElementNS(SVG, tag);
  Object.entries(fields).forEach(([name, value]) => node.setAttribute(name, value));
  node.append(...children);
  return node;
}

/** At the head of what ranks methods of both regimes; hidden where there is nothing to say. */
export const regimesHead = () => make("p.ckv-regimes", { hidden: true });

/** Which regime a row is of. */
export function regimeMark(regime) {
  return regime ? make("span.ckv-regime", { "data-regime": str(regime), text: str(regime) }) : null;
}

/** Copy text; the old command is for pages served without TLS. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea.ckv-offscreen", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** A button that copies what `text()` gives, and says for a moment whether it did. */
export function copyButton(words, text) {
  const button = make("button.ckv-button.ckv-quiet", words);
  button.addEventListener("click", async () => {
    setText(button, (await copyText(text())) ? "Copied" : "Not copied");
    setTimeout(() => setText(button, words), 1500);
  });
  return button;
}

/** What is wider than the page scrolls sideways, with the keyboard too. */
export const scroller = (label, ...children) => make("div.ckv-scroll", { tabindex: "0", role: "region", "aria-label": label }, children);

/** The head of a table: a name, a cell's content, or {text, title, class}, for each column. */
export const tableHead = (...names) =>
  make(
    "thead",
    make(
      "tr",
      ...names.map((name) => make("th", ...(name?.constructor === Object ? [{ scope: "col", ...name }] : [{ scope: "col" }, name]))),
    ),
  );

/** Give the reader a Blob, or what an address holds, as a file. */
export function saveFile(content, name) {
  const href = content instanceof Blob ? URL.createObjectURL(content) : content;
  make("a", { href, download: name }).click();
  if (content instanceof Blob) setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** Draw now and after each update from the server; say so in data-ready for the tests. */
export function onValue({ element, props, watch }, draw) {
  const run = () => {
    draw(props.value && typeof props.value === "object" ? props.value : null);
    element.dataset.ready = "1";
  };
  run();
  watch("value", run);
  element.addEventListener(INSTEAD, ({ detail }) => (detail === null ? run() : draw(detail)));
}

const INSTEAD = "ckv-instead";

/** Have the component of this id show another value than the server's; null for that again. */
export function showInstead(id, value) {
  const element = document.querySelector(`#${CSS.escape(id)}[data-ready], #${CSS.escape(id)} [data-ready]`);
  element?.dispatchEvent(new CustomEvent(INSTEAD, { detail: value }));
}

/** As `onValue`, but only where the value is another one. */
export function onChange(host, draw) {
  let drawn = "";
  onValue(host, (value) => {
    const shape = JSON.stringify(value);
    if (shape !== drawn) draw(value);
    drawn = shape;
  });
}

/** Show one part per item in `parent`, each kept while it changes; `create()` gives {node, draw(item, at)}. */
export function showEach(parent, create) {
  const parts = [];
  return (items) => {
    while (parts.length > items.length) parts.pop().node.remove();
    items.forEach((item, at) => {
      if (!parts[at]) {
        parts[at] = create();
        parent.append(parts[at].node);
      }
      parts[at].draw(item, at);
    });
  };
}

/** The answer of an address; throws an Error where it is none. */
export async function fetchOk(url, signal = undefined) {
  const answer = await fetch(url, { signal });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer;
}

/** Act whenever the page changes between light and dark, while the element is on it. */
export const onTheme = (element, act) =>
  new MutationObserver(() => element.isConnected && act()).observe(document.body, { attributes: true, attributeFilter: ["class"] });

/** An observer that says of a node whether it is near the view, whenever that changes. */
export const nearView = (act, rootMargin = "200px") =>
  new IntersectionObserver((entries) => act(entries.some((entry) => entry.isIntersecting)), { rootMargin });

/** Columns of a grid of `count` cards, so that rows are about equally full: 5 are 3 + 2. */
export function balanceColumns(grid, count) {
  const rows = Math.max(1, Math.ceil(count / 4));
  grid.style.setProperty("--ckv-columns", String(Math.max(1, Math.ceil(count / rows))));
}

/** One CSV field on one line, which no spreadsheet runs as a formula; as ui/tables/csv_text.py does. */
export function csvField(value) {
  const escaped = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };
  const hex = (code) => (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16)}`);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is escaped
  const line = str(value).replace(/[\0-\x1f\x7f-\x9f\u2028\u2029\p{Cs}]/gu, (found) => escaped[found] ?? hex(found.charCodeAt(0)));
  const isNumber = typeof value === "number" || /^-[0-9.,]+\s*%?$/.test(line);
  const safe = isNumber ? line : line.replace(/(^|;)(?=[\s\u200b-\u200f\u2060\ufeff]*[-=+@\uff0d\uff1d\uff0b\uff20])/g, "$1'");
  return `"${safe.replaceAll('"', '""')}"`;
}

/** Give the reader lines of fields as a CSV file. */
export function downloadCsv(lines, name) {
  const text = `${lines.map((line) => line.map(csvField).join(",")).join("\r\n")}\r\n`;
  saveFile(new Blob([text], { type: "text/csv;charset=utf-8" }), name);
}
