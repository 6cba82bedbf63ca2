// Method x budget: what came out at each, a button a cell. The chosen cell drives what stands below.

import { chooseVariant, chosenVariant } from "../../../assets/scripts/choice.js";
import { list, make, onChange, regimeMark, setText, specParts, str } from "../../../assets/scripts/dom.js";
import { marker, outcomeGlyph, outcomeMark } from "../../../assets/scripts/marks.js";

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const IN_A_ROW = 6; // budgets of a phone's row, as in grid.css
const GLYPHS = { kept: "answered", cut: "cut" };

/** `10 %` over `8.7 MiB`. */
const amount = (tag, { label, size }, more = {}) =>
  make(tag, more, make("b", { text: str(label) }), make("span", { text: ` ${str(size)}` }));

function head(value) {
  return make(
    "thead",
    make("tr", [
      make("th", { scope: "col", text: "Method" }),
      ...list(value.columns).map((column) => amount("th.ckv-budget", column, { scope: "col" })),
      make("th", { scope: "col", text: str(value.least) }),
    ]),
  );
}

function fullRow(value) {
  const { full } = value;
  return make("tr.ckv-full", [
    make("th", { scope: "row" }, make("span.ckv-name", marker(full.look), make("span", { text: str(full.name) }))),
    make("td", { colspan: String(list(value.columns).length) }, [
      full.outcome ? outcomeMark(full.outcome) : null,
      make("span.ckv-written", { text: str(full.shown) }),
    ]),
    amount("td", full),
  ]);
}

function pointButton(cell) {
  const glyph = GLYPHS[cell.state] ? outcomeGlyph(GLYPHS[cell.state]) : null;
  const props = { "data-state": str(cell.state), "data-index": cell.index, title: str(cell.shown), "aria-label": str(cell.words) };
  const node = make("button.ckv-point", props, [glyph, make("span", { text: str(cell.shown) })]);
  node.classList.toggle("ckv-least", Boolean(cell.least));
  node.addEventListener("click", () => chooseVariant(cell.index));
  return node;
}

function row(line) {
  const name = make("span.ckv-name", marker(line.look), make("span", ...specParts(line.name)));
  const least = line.least ? amount("td", line.least) : make("td", { text: str(line.never) });
  return make("tr", [
    make("th", { scope: "row", title: str(line.spec) }, name, regimeMark(line.regime)),
    ...list(line.cells).map((cell) => make("td.ckv-at", cell ? pointButton(cell) : null)),
    least,
  ]);
}

/** The next cell in a direction from one, passing over budgets at which a method was not run. */
function nextCell(rows, from, [down, right]) {
  let at = rows.findIndex((cells) => cells.includes(from));
  let place = rows[at].indexOf(from);
  do {
    at += down;
    place += right;
  } while (rows[at]?.length > place && place >= 0 && !rows[at][place]);
  return rows[at]?.[place];
}

export default function mount(host) {
  const { root } = host;
  const table = make("table.ckv-outcomes", { "aria-label": "Outcome by method and budget" });
  const card = make("div.ckv-card.ckv-flush.ckv-outcomes-card", table);
  const note = make("p.ckv-hint");
  root.append(card, note);
  let first = null; // index of what is chosen where the address names no cell

  const buttons = () => [...table.querySelectorAll(".ckv-point")];
  const rows = () => [...table.tBodies[0].rows].map((each) => [...each.querySelectorAll(".ckv-at")].map((at) => at.firstElementChild));

  function mark() {
    const all = buttons();
    const named = (index) => all.find((each) => Number(each.dataset.index) === index);
    const chosen = named(chosenVariant()) ?? named(first);
    for (const each of all) {
      each.setAttribute("aria-pressed", String(each === chosen));
      each.tabIndex = each === chosen ? 0 : -1; // one stop of the keyboard for all cells
    }
  }

  table.addEventListener("keydown", (event) => {
    const from = event.target.closest?.(".ckv-point");
    const next = from && STEPS[event.key] ? nextCell(rows(), from, STEPS[event.key]) : null;
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });

  onChange(host, (value) => {
    card.hidden = !value;
    setText(note, str(value?.note));
    if (!value) return;
    const focused = table.contains(document.activeElement) ? /** @type {any} */ (document.activeElement).dataset.index : null;
    first = value.chosen;
    table.style.setProperty("--ckv-budgets", String(list(value.columns).length));
    table.classList.toggle("ckv-many", list(value.columns).length > IN_A_ROW);
    const lines = [...(value.full ? [fullRow(value)] : []), ...list(value.lines).map(row)];
    table.replaceChildren(head(value), make("tbody", ...lines));
    mark();
    if (focused) table.querySelector(`[data-index="${focused}"]`)?.focus();
  });

  window.addEventListener("hashchange", () => root.isConnected && mark());
}
