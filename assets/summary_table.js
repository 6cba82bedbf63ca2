// Receipt and figures, one row per variant: an accessible table with help and a CSV download.

const TONE_SIGNS = { warn: "⚠", good: "✓" };
const tip = make("div", { class: "ckv-tip", role: "tooltip", popover: "manual", id: `tip-${Math.random().toString(36).slice(2)}` });
const empty = make("p", { class: "ckv-empty", text: "The figures of every variant appear here after a run." });
const table = make("table", { class: "ckv-table", id: `table-${Math.random().toString(36).slice(2)}` });
const scroller = make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": "Summary table, scrolls sideways" }, table);
const notes = make("ul", { class: "ckv-notes" });
const download = make("button", { type: "button", class: "ckv-button", text: "Download CSV", onclick: saveCsv });
const more = make("button", { type: "button", class: "ckv-button", "aria-controls": table.id, onclick: toggleExtra });
const foot = make("div", { class: "ckv-table-foot" }, notes, make("div", { class: "ckv-table-actions" }, more, download));
const head = regimesHead();
root.append(empty, head, scroller, foot, tip);
let shown = null;
let withExtra = false;

function showTip(button, text) {
  tip.textContent = text;
  tip.showPopover();
  const at = button.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  tip.style.left = `${clamp(at.left + at.width / 2 - box.width / 2, 8, innerWidth - box.width - 8)}px`;
  const above = at.top - box.height - 6;
  tip.style.top = `${above > 8 ? above : at.bottom + 6}px`;
}

function hideTip() {
  if (tip.matches(":popover-open")) tip.hidePopover();
}

/** A "?" that shows its text on hover, focus or click; Escape closes it. */
function helpButton(column) {
  const button = make("button", {
    type: "button", class: "ckv-help", text: "?", "aria-describedby": tip.id,
    "aria-label": `What ${str(column.label)} means: ${str(column.help)}`,
  });
  const show = () => showTip(button, str(column.help));
  for (const name of ["mouseenter", "focus", "click"]) button.addEventListener(name, show);
  for (const name of ["mouseleave", "blur"]) button.addEventListener(name, hideTip);
  button.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  return button;
}

const alignOf = (column) => (column.align === "left" ? "left" : "right");

function headCell(column) {
  const unit = column.unit ? make("span", { class: "ckv-subdued", text: str(column.unit) }) : null;
  return make("th", { scope: "col", class: `ckv-${alignOf(column)}` },
    make("span", { text: str(column.label) }), " ",
    make("span", { class: "ckv-th" }, unit, column.help ? helpButton(column) : null));
}

function bodyCell(cell, column) {
  const tone = TONE_SIGNS[cell?.tone] ? cell.tone : "";
  const title = str(cell?.title);
  return make("td", { class: `ckv-num ckv-${alignOf(column)} ${tone ? `ckv-${tone}` : ""}`, title: title || null },
    tone ? make("span", { "aria-hidden": "true", text: `${TONE_SIGNS[tone]} ` }) : null,
    make("span", { text: str(cell?.text) || "–" }));
}

function bodyRow(row, columns) {
  return make("tr", {},
    make("th", { scope: "row", title: str(row.spec) },
      make("span", { class: "ckv-name" }, marker(row.look), make("span", {},
        make("span", { text: str(row.label) }),
        regimeMark(row.regime),
        make("code", { class: "ckv-spec" }, ...specParts(row.spec))))),
    ...columns.map((column) => bodyCell(row.cells?.[column.key], column)));
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
    make("caption", { class: "ckv-offscreen", text: "Receipt and figures of every variant" }),
    make("thead", {}, make("tr", {}, make("th", { scope: "col", text: "Variant" }), ...kept.map(headCell))),
    make("tbody", {}, ...list(shown.rows).map((row) => bodyRow(row, kept))));
}

let drawn = "";
onValue((value) => {
  const rows = list(value?.rows);
  const filled = rows.length > 0;
  empty.hidden = filled;
  scroller.hidden = foot.hidden = !filled;
  setRegimes(head, filled && value.head);
  shown = value;
  const shape = JSON.stringify(value);
  if (!filled || shape === drawn) return;
  drawn = shape;
  draw();
  notes.replaceChildren(...list(value.notes).map((text) => make("li", { text: str(text) })));
});
