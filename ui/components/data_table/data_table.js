// Rows of figures: sorted by a click on a column's name, with help, more columns on demand, and CSV.

import {
  button,
  downloadCsv,
  list,
  make,
  onChange,
  quietButton,
  regimeMark,
  regimesHead,
  scroller,
  setText,
  shape,
  showText,
  specParts,
  str,
  written,
} from "../../../assets/scripts/dom.js";
import { cssHue, marker, outcomeGlyph, outcomeMark } from "../../../assets/scripts/marks.js";
import { helpButton, hideTip } from "../../../assets/scripts/tip.js";

const TONE_SIGNS = { warn: "⚠", good: "✓" };
const sideOf = (column) => (column.align === "left" ? "" : "ckv-right");
const cellOf = (row, column) => row.cells[column.key];
const figureOf = (row, column) => cellOf(row, column)?.value ?? cellOf(row, column)?.text ?? null;

function contentOf({ text, href, pieces, tone, outcome, word, more, strip }, look) {
  // Only pages of ours are led to.
  const link = str(href).startsWith("/") && !str(href).startsWith("//") ? str(href) : null;
  const mark = () => (outcome ? outcomeMark(outcome) : null);
  if (pieces) return make("a.ckv-generated", { href: link, dir: "auto" }, mark(), make("span", written(pieces)));
  if (strip) return stripOf(strip, look);
  if (outcome) return outcomeOf(outcome, text, word);
  const behind = more ? make("span.ckv-behind", str(more)) : null;
  if (link) return [make("a.ckv-link", { href: link, text: str(text) }), behind];
  const sign = TONE_SIGNS[tone];
  return [sign ? make("span", { "aria-hidden": "true", text: `${sign} ` }) : null, make("span", str(text) || "–"), behind];
}

/** An outcome as a pill, or where its word stands for a sign alone before what was written. */
function outcomeOf(outcome, text, word) {
  if (!word) return outcomeMark(str(outcome), str(text));
  const words = make("span.ckv-offscreen", `${word}${text ? ": " : ""}`);
  return make("span.ckv-cell-outcome", { "data-outcome": str(outcome) }, [
    outcomeGlyph(str(outcome)),
    words,
    make("span", { dir: "auto", text: str(text) }),
  ]);
}

/** An interval from 0 to 1, in the colour of its row. */
function stripOf([low, mean, high], look) {
  const at = (share) => 6 + 148 * share;
  const color = look ? cssHue(look) : "currentColor";
  const node = shape("svg", { viewBox: "0 0 160 16", preserveAspectRatio: "xMinYMid", class: "ckv-strip", "aria-hidden": "true" });
  node.append(
    shape("path", { d: "M6 8H154M6 5v6M80 5v6M154 5v6", class: "ckv-strip-axis" }),
    shape("path", { d: `M${at(low)} 8H${at(high)}`, stroke: color, "stroke-width": 3, opacity: 0.45 }),
    shape("circle", { cx: at(mean), cy: 8, r: 4, fill: color }),
  );
  return node;
}

function firstCell(row, column) {
  const cell = cellOf(row, column) ?? {};
  const text = cell.href ? contentOf(cell) : make("span", specParts(cell.text || "–"));
  const spec = cell.spec ? make("code.ckv-spec", ...specParts(cell.spec)) : null;
  const mark = regimeMark(row.regime);
  const named = mark || spec ? make("span", text, mark, spec) : text;
  const inner = row.look ? make("span.ckv-name", marker(row.look), named) : named;
  return make("th", { scope: "row", class: sideOf(column), title: str(cell.spec) || null }, inner);
}

function bodyCell(row, column) {
  const cell = cellOf(row, column) ?? {};
  const tone = TONE_SIGNS[cell.tone] ? `ckv-${cell.tone}` : "";
  const title = str(cell.title) || (str(cell.text) ? null : "Not known yet, or not defined for this row.");
  const side = `ckv-num ${sideOf(column)} ${tone} ${cell.strip ? "ckv-wide" : ""}`;
  return make("td", { class: side, title }, lead(column), contentOf(cell, row.look));
}

/** The head of a cell again, where a row is a few lines on a phone. */
function lead(column) {
  const name = column.unit ? `${column.label} (${column.unit})` : str(column.label);
  const text = column.href ? str(column.key) : name; // the head above says which run it is
  if (!column.look) return make("span.ckv-lead", { "aria-hidden": "true", text });
  return make("span.ckv-lead", { title: str(column.label) }, marker(column.look), make("span.ckv-offscreen", str(column.label)));
}

export default function mount(host) {
  const { root } = host;
  const empty = make("p.ckv-empty");
  const head = regimesHead();
  const table = make("table.ckv-table.ckv-lines", { id: `table-${Math.random().toString(36).slice(2)}` });
  const box = scroller("", table);
  const note = make("p.ckv-notice");
  const save = quietButton("Download CSV", saveCsv);
  const more = quietButton("", toggleExtra, { "aria-controls": table.id });
  const all = quietButton("", showAll, { "aria-controls": table.id });
  const equals = make("div.ckv-seg", { role: "group", "aria-label": "Rows" }, [
    button("Only differences", () => showEqual(false)),
    button("Everything", () => showEqual(true)),
  ]);
  const foot = make("div.ckv-row.ckv-table-foot", note, make("div.ckv-row", all, more, save));
  root.append(empty, head, equals, box, foot);
  let shown = null;
  let withExtra = false;
  let withAll = false;
  let withEqual = false;
  let order = { key: "", down: false };

  /** Missing values stay last in both directions. */
  function compare(left, right) {
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    const numbers = typeof left === "number" && typeof right === "number";
    const sign = numbers ? left - right : str(left).localeCompare(str(right), "en", { numeric: true });
    return order.down ? -sign : sign;
  }

  function sorted(value) {
    const column = list(value.columns).find((each) => each.key === order.key);
    if (!column) return list(value.rows);
    return [...list(value.rows)].sort((a, b) => compare(figureOf(a, column), figureOf(b, column)));
  }

  function sortBy(column) {
    order = { key: column.key, down: order.key === column.key && !order.down };
    draw();
    table.querySelector(`button[data-key="${CSS.escape(column.key)}"]`)?.focus();
  }

  function headCell(column) {
    const active = order.key === column.key;
    const sort = make("button.ckv-sort", { "data-key": column.key, onclick: () => sortBy(column) }, [
      column.look ? make("span.ckv-name", marker(column.look), make("span", str(column.label))) : make("span", str(column.label)),
      make("span", { "aria-hidden": "true", text: active ? (order.down ? " ▼" : " ▲") : "" }),
    ]);
    const unit = column.unit ? make("span.ckv-subdued.ckv-unit", str(column.unit)) : null;
    const help = column.help ? helpButton(str(column.label), str(column.help)) : null;
    const open = column.href ? make("a.ckv-link", { href: str(column.href), text: "Open" }) : null;
    const direction = active ? (order.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", class: sideOf(column), "aria-sort": direction }, sort, make("span.ckv-th", unit, help, open));
  }

  function toggleExtra() {
    withExtra = !withExtra;
    draw();
  }

  /** Rows that are the same in all columns are shown, or left out. */
  function showEqual(isShown) {
    withEqual = isShown;
    draw();
  }

  function showAll() {
    withAll = true;
    draw();
    table.querySelectorAll("tbody tr")[shown.first]?.querySelector("a")?.focus();
  }

  function draw() {
    hideTip();
    const rows = sorted(shown).filter((row) => withEqual || !row.equal);
    showText(empty, rows.length ? "" : shown.empty);
    equals.hidden = !list(shown.rows).some((row) => row.equal);
    [...equals.children].forEach((each, at) => each.setAttribute("aria-pressed", String(Boolean(at) === withEqual)));
    const every = list(shown.columns).filter((column) => !column.hidden);
    const columns = every.filter((column) => withExtra || !column.extra);
    const extra = every.filter((column) => column.extra).length;
    more.hidden = extra === 0;
    more.setAttribute("aria-expanded", String(withExtra));
    setText(more, withExtra ? "Fewer columns" : `${extra} more column${extra === 1 ? "" : "s"}`);
    const first = shown.first || undefined;
    all.hidden = withAll || !first || rows.length <= first;
    setText(all, `Show all ${rows.length}`);
    const caption = str(shown.caption);
    box.setAttribute("aria-label", `${caption}, scrolls sideways`);
    const cells = (row) => columns.map((column, at) => (at ? bodyCell(row, column) : firstCell(row, column)));
    table.replaceChildren(
      make("caption.ckv-offscreen", { text: caption }),
      make("thead", make("tr", ...columns.map(headCell))),
      make(
        "tbody",
        ...rows.slice(0, withAll ? undefined : first).map((row) => make("tr", { class: row.below ? "ckv-below" : "" }, ...cells(row))),
      ),
    );
  }

  function saveCsv() {
    const columns = list(shown.columns);
    const names = columns.map((column) => str(column.label) + (column.unit ? ` (${column.unit})` : ""));
    const lines = [
      [...names, ...(shown.head ? ["Regime"] : [])],
      ...sorted(shown).map((row) => [...columns.map((column) => figureOf(row, column)), ...(shown.head ? [row.regime] : [])]),
    ];
    downloadCsv(lines, str(shown.file) || "table.csv");
  }

  // A row that is opened by the server, which answers with the address; a new tab has the link's own.
  root.addEventListener("click", (event) => {
    const link = shown?.opens && event.target.closest("tbody th a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    host.trigger("open", Object.fromEntries(new URL(link.href).searchParams));
  });

  onChange(host, (value) => {
    const filled = list(value?.rows).length > 0;
    showText(empty, filled ? "" : value?.empty);
    box.hidden = foot.hidden = equals.hidden = !filled;
    shown = value;
    setText(note, str(value?.note));
    showText(head, filled && value.head);
    if (filled) draw();
  });
}
