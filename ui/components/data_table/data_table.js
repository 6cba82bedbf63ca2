// Rows of figures: sorted by a click on a column's name, saved as CSV with unrounded values.

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

const sideOf = (column) => (column.align === "left" ? "ckv-left" : "ckv-right");
const cellOf = (row, column) => row.cells?.[column.key];
const figureOf = (row, column) => cellOf(row, column)?.value ?? cellOf(row, column)?.text ?? null;

function bodyCell(row, column, first) {
  const { text: words, href } = cellOf(row, column) ?? {};
  // Only pages of ours are led to.
  const text =
    str(href).startsWith("/") && !str(href).startsWith("//")
      ? make("a.ckv-link", { href: str(href), text: str(words) })
      : make("span", first ? specParts(words || "–") : str(words) || "–");
  const sign = first && row.look ? marker(row.look) : null;
  const mark = first ? regimeMark(row.regime) : null;
  const named = mark ? make("span", text, mark) : text;
  const inner = sign ? make("span.ckv-name", sign, named) : named;
  return first ? make("th", { scope: "row", class: sideOf(column) }, inner) : make("td.ckv-num", { class: sideOf(column) }, inner);
}

export default function mount(host) {
  const { root } = host;
  const empty = make("p.ckv-empty");
  const head = regimesHead();
  const table = make("table.ckv-table");
  const box = scroller("", table);
  const note = make("p.ckv-notice");
  const save = make("button.ckv-button", { text: "Download CSV", onclick: saveCsv });
  const foot = make("div.ckv-table-foot", note, save);
  root.append(empty, head, box, foot);
  let shown = null;
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
    draw(shown);
    table.querySelector(`button[data-key="${CSS.escape(column.key)}"]`)?.focus();
  }

  function headCell(column) {
    const active = order.key === column.key;
    const button = make("button.ckv-sort", { "data-key": column.key, onclick: () => sortBy(column) }, [
      make("span", str(column.label)),
      make("span", { "aria-hidden": "true", text: active ? (order.down ? " ▼" : " ▲") : "" }),
    ]);
    const unit = column.unit ? make("span.ckv-subdued.ckv-unit", str(column.unit)) : null;
    const direction = active ? (order.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", class: sideOf(column), "aria-sort": direction }, button, unit);
  }

  function draw(value) {
    const columns = list(value.columns).filter((column) => !column.hidden);
    const caption = str(value.caption);
    box.setAttribute("aria-label", `${caption}, scrolls sideways`);
    table.replaceChildren(
      make("caption.ckv-offscreen", { text: caption }),
      make("thead", make("tr", ...columns.map(headCell))),
      make("tbody", ...sorted(value).map((row) => make("tr", ...columns.map((column, at) => bodyCell(row, column, at === 0))))),
    );
  }

  function saveCsv() {
    if (!shown) return;
    const columns = list(shown.columns);
    const names = columns.map((column) => str(column.label) + (column.unit ? ` (${column.unit})` : ""));
    const lines = [
      [...names, ...(shown.head ? ["Regime"] : [])],
      ...sorted(shown).map((row) => [...columns.map((column) => figureOf(row, column)), ...(shown.head ? [row.regime] : [])]),
    ];
    downloadCsv(lines, str(shown.file) || "table.csv");
  }

  onValue(host, (value) => {
    const filled = list(value?.rows).length > 0;
    setText(empty, str(value?.empty));
    empty.hidden = filled || !value?.empty;
    box.hidden = foot.hidden = !filled;
    shown = value;
    setText(note, str(value?.note));
    setRegimes(head, filled && value.head);
    if (filled) draw(value);
  });
}
