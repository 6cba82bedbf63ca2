// Receipt and figures, one row per variant: an accessible table with help and a CSV download.

import {
  downloadCsv,
  list,
  make,
  onValue,
  regimeMark,
  regimesHead,
  scroller,
  setRegimes,
  setText,
  specParts,
  str,
} from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { hideTip, showTip } from "../../../assets/scripts/tip.js";

const TONE_SIGNS = { warn: "⚠", good: "✓" };
const alignOf = (column) => (column.align === "left" ? "left" : "right");

function bodyCell(cell, column) {
  const tone = TONE_SIGNS[cell?.tone] ? cell.tone : "";
  const title = str(cell?.title);
  return make("td", { class: `ckv-num ckv-${alignOf(column)} ${tone ? `ckv-${tone}` : ""}`, title: title || null }, [
    tone ? make("span", { "aria-hidden": "true", text: `${TONE_SIGNS[tone]} ` }) : null,
    make("span", str(cell?.text) || "–"),
  ]);
}

function bodyRow(row, columns) {
  return make("tr", [
    make("th", { scope: "row", title: str(row.spec) }, [
      make("span.ckv-name", [
        marker(row.look),
        make("span", make("span", str(row.label)), regimeMark(row.regime), make("code.ckv-spec", ...specParts(row.spec))),
      ]),
    ]),
    ...columns.map((column) => bodyCell(row.cells?.[column.key], column)),
  ]);
}

function linesOf(value) {
  const columns = list(value.columns);
  const titles = columns.map((column) => str(column.label) + (column.unit ? ` (${column.unit})` : ""));
  const mixed = Boolean(value.head);
  const lines = [["Variant", "SPEC", ...(mixed ? ["Regime"] : []), ...titles]];
  for (const row of list(value.rows)) {
    lines.push([row.label, row.spec, ...(mixed ? [row.regime] : []), ...columns.map((column) => row.cells?.[column.key]?.text)]);
  }
  return lines;
}

export default function mount(host) {
  const { root } = host;
  const empty = make("p.ckv-empty", "The figures of every variant appear here after a run.");
  const table = make("table.ckv-table", { id: `table-${Math.random().toString(36).slice(2)}` });
  const box = scroller("Summary table, scrolls sideways", table);
  const notes = make("ul.ckv-notes");
  const download = make("button.ckv-button", { text: "Download CSV", onclick: saveCsv });
  const more = make("button.ckv-button", { "aria-controls": table.id, onclick: toggleExtra });
  const foot = make("div.ckv-table-foot", notes, make("div.ckv-table-actions", more, download));
  const head = regimesHead();
  root.append(empty, head, box, foot);
  let shown = null;
  let withExtra = false;

  /** A "?" that shows its text on hover, focus or click; Escape closes it. */
  function helpButton(column) {
    const button = make("button.ckv-help", { text: "?", "aria-label": `What ${str(column.label)} means: ${str(column.help)}` });
    const show = () => showTip(button, str(column.help));
    for (const name of ["mouseenter", "focus", "click"]) button.addEventListener(name, show);
    for (const name of ["mouseleave", "blur"]) button.addEventListener(name, hideTip);
    return button;
  }

  function headCell(column) {
    const unit = column.unit ? make("span.ckv-subdued", str(column.unit)) : null;
    return make("th", { scope: "col", class: `ckv-${alignOf(column)}` }, [
      make("span", str(column.label)),
      " ",
      make("span.ckv-th", unit, column.help ? helpButton(column) : null),
    ]);
  }

  function saveCsv() {
    if (shown) downloadCsv(linesOf(shown), "summary.csv");
  }

  function toggleExtra() {
    withExtra = !withExtra;
    draw();
  }

  /** The table of the value shown; extra columns only if they were asked for. */
  function draw() {
    hideTip();
    const columns = list(shown.columns);
    const extra = columns.filter((column) => column.extra === true).length;
    const kept = columns.filter((column) => withExtra || column.extra !== true);
    more.hidden = extra === 0;
    more.setAttribute("aria-expanded", String(withExtra));
    setText(more, withExtra ? "Fewer columns" : `${extra} more column${extra === 1 ? "" : "s"}`);
    table.replaceChildren(
      make("caption.ckv-offscreen", "Receipt and figures of every variant"),
      make("thead", make("tr", make("th", { scope: "col", text: "Variant" }), ...kept.map(headCell))),
      make("tbody", ...list(shown.rows).map((row) => bodyRow(row, kept))),
    );
  }

  let drawn = "";
  onValue(host, (value) => {
    const rows = list(value?.rows);
    const filled = rows.length > 0;
    empty.hidden = filled;
    box.hidden = foot.hidden = !filled;
    setRegimes(head, filled && value.head);
    shown = value;
    const shape = JSON.stringify(value);
    if (!filled || shape === drawn) return;
    drawn = shape;
    draw();
    notes.replaceChildren(...list(value.notes).map((text) => make("li", str(text))));
  });
}
