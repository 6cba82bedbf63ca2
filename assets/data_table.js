// Rows of figures: sorted by a click on a column's name, saved as CSV with unrounded values.

const empty = make("p", { class: "ckv-empty" });
const head = regimesHead();
const table = make("table", { class: "ckv-table" });
const scroller = make("div", { class: "ckv-scroll", tabindex: "0", role: "region" }, table);
const note = make("p", { class: "ckv-notice" });
const save = make("button", { type: "button", class: "ckv-button", text: "Download CSV", onclick: saveCsv });
const foot = make("div", { class: "ckv-table-foot" }, note, save);
root.append(empty, head, scroller, foot);
let shown = null;
let order = { key: "", down: false };

const cellOf = (row, column) => row.cells?.[column.key];
const valueOf = (row, column) => cellOf(row, column)?.value ?? cellOf(row, column)?.text ?? null;

/** Missing values stay last in both directions. */
function compare(left, right) {
  if (left === null || right === null) return (left === null) - (right === null);
  const numbers = typeof left === "number" && typeof right === "number";
  const sign = numbers ? left - right : str(left).localeCompare(str(right), "en", { numeric: true });
  return order.down ? -sign : sign;
}

function sorted(value) {
  const column = list(value.columns).find((each) => each.key === order.key);
  if (!column) return list(value.rows);
  return [...list(value.rows)].sort((a, b) => compare(valueOf(a, column), valueOf(b, column)));
}

function sortBy(column) {
  order = { key: column.key, down: order.key === column.key && !order.down };
  draw(shown);
  table.querySelector(`button[data-key="${CSS.escape(column.key)}"]`)?.focus();
}

function headCell(column) {
  const active = order.key === column.key;
  const sign = active ? (order.down ? " ▼" : " ▲") : "";
  const button = make("button", {
    type: "button", class: "ckv-sort", "data-key": column.key, onclick: () => sortBy(column),
  }, make("span", { text: str(column.label) }), make("span", { "aria-hidden": "true", text: sign }));
  const unit = column.unit ? make("span", { class: "ckv-subdued ckv-unit", text: str(column.unit) }) : null;
  return make("th", {
    scope: "col", class: `ckv-${column.align === "left" ? "left" : "right"}`,
    "aria-sort": active ? (order.down ? "descending" : "ascending") : "none",
  }, button, unit);
}

function bodyCell(row, column, first) {
  const side = column.align === "left" ? "left" : "right";
  const { text: words, href } = cellOf(row, column) ?? {};
  // Only pages of ours are led to.
  const text = str(href).startsWith("/") && !str(href).startsWith("//")
    ? make("a", { class: "ckv-link", href: str(href), text: str(words) })
    : make("span", { text: str(words) || "–" });
  const sign = first && row.look ? marker(row.look) : null;
  const mark = first ? regimeMark(row.regime) : null;
  const named = mark ? make("span", {}, text, mark) : text;
  const inner = sign ? make("span", { class: "ckv-name" }, sign, named) : named;
  return first
    ? make("th", { scope: "row", class: `ckv-${side}` }, inner)
    : make("td", { class: `ckv-num ckv-${side}` }, inner);
}

function draw(value) {
  const columns = list(value.columns).filter((column) => !column.hidden);
  const caption = str(value.caption);
  scroller.setAttribute("aria-label", `${caption}, scrolls sideways`);
  table.replaceChildren(
    make("caption", { class: "ckv-offscreen", text: caption }),
    make("thead", {}, make("tr", {}, ...columns.map(headCell))),
    make("tbody", {}, ...sorted(value).map((row) =>
      make("tr", {}, ...columns.map((column, at) => bodyCell(row, column, at === 0))))));
}

function saveCsv() {
  if (!shown) return;
  const columns = list(shown.columns);
  const names = columns.map((column) => str(column.label) + (column.unit ? ` (${column.unit})` : ""));
  const lines = [[...names, ...(shown.head ? ["Regime"] : [])], ...sorted(shown).map((row) =>
    [...columns.map((column) => valueOf(row, column)), ...(shown.head ? [row.regime] : [])])];
  downloadCsv(lines, str(shown.file) || "table.csv");
}

onValue((value) => {
  const filled = list(value?.rows).length > 0;
  setText(empty, str(value?.empty));
  empty.hidden = filled || !value?.empty;
  scroller.hidden = foot.hidden = !filled;
  shown = value;
  setText(note, str(value?.note));
  setRegimes(head, filled && value.head);
  if (filled) draw(value);
});
