// A table of what methods wrote: rows stay where they are while their texts grow; the whole of a long text is a click away.

import { chooseVariant, chosenVariant } from "../../../assets/scripts/choice.js";
import { copyButton, list, make, percent, quietButton, regimeMark, setText, specParts, str, written } from "../../../assets/scripts/dom.js";
import { marker, outcomeMark } from "../../../assets/scripts/marks.js";
import { helpButton } from "../../../assets/scripts/tip.js";

const textOf = (pieces) =>
  list(pieces)
    .map(([text]) => str(text))
    .join("");

function headCell({ key, label, unit, help }) {
  const words = unit ? `${str(label)}, ${unit}` : str(label);
  return make("th", { scope: "col", "data-key": key }, make("span.ckv-th", words, help ? helpButton(str(label), str(help)) : null));
}

/** One method: its cells are made once and written again when something of them is new. */
class Row {
  constructor(table, item) {
    this.table = table;
    this.isWhole = false;
    this.drawn = {};
    const can = item.kept === true;
    const name = make("span", specParts(item.name));
    const title = str(item.spec);
    const inside = [marker(item.look), name];
    this.button = can
      ? make("button.ckv-choose.ckv-name", { title: `${title}: show what it kept below`, onclick: () => table.choose(item.index) }, inside)
      : make("span.ckv-name", { title }, inside);
    this.text = make("div.ckv-wrote", { "aria-label": `Text of ${str(item.name)}`, dir: "auto" });
    this.more = quietButton("Show all", () => this.toggle(), { hidden: true, "aria-expanded": "false" });
    this.copy = copyButton("Copy", () => textOf(this.item.pieces));
    this.stop = make("span.ckv-hint");
    this.tools = make("div.ckv-row", this.stop, this.more, this.copy);
    this.cells = {
      name: make("th", { scope: "row" }, this.button, regimeMark(item.regime)),
      text: make("td", this.text, this.tools),
      outcome: make("td"),
      memory: make("td.ckv-num.ckv-right"),
      agreement: make("td.ckv-num.ckv-right", { "data-label": "agrees" }),
    };
    this.node = make("tr", { "data-variant": item.index, class: item.reference ? "ckv-reference" : "" });
    if (can)
      this.node.addEventListener("click", ({ target }) => {
        const isOwn = target instanceof Element && target.closest("button, a");
        if (!isOwn && getSelection()?.isCollapsed !== false) table.choose(item.index);
      });
  }

  toggle() {
    this.isWhole = !this.isWhole;
    this.more.setAttribute("aria-expanded", String(this.isWhole));
    setText(this.more, this.isWhole ? "Show less" : "Show all");
    this.drawText();
  }

  draw(item, columns) {
    this.item = item;
    for (const { key, label } of columns) this.cells[key] ??= make("td.ckv-num.ckv-right", { "data-label": str(label).toLowerCase() });
    const nodes = columns.map(({ key }) => this.cells[key]);
    if (nodes.some((node, at) => this.node.children[at] !== node)) this.node.replaceChildren(...nodes);
    this.drawText();
    this.once("outcome", [item.outcome, item.outcome_word, item.state], () => outcomeOf(item));
    this.once("memory", [item.mib, item.share, item.reads, item.state], () => memoryOf(item));
    const grey = () => make("span.ckv-wait", { title: "Not known yet" });
    this.once("agreement", [item.agreement, item.state], () => [
      item.agreement ?? (item.state === "done" || item.reference ? "–" : grey()),
    ]);
    for (const { key, unit } of columns.filter((column) => column.figure)) {
      const found = item.figures?.[key];
      this.once(key, [found], () => [found ? make("span", { title: found.title ?? null, "data-unit": unit }, str(found.text)) : grey()]);
    }
    if (item.outcome_title) this.cells.outcome.title = str(item.outcome_title);
  }

  once(key, what, make_) {
    const shape = JSON.stringify(what);
    if (this.drawn[key] === shape) return;
    this.drawn[key] = shape;
    this.cells[key].replaceChildren(...make_());
  }

  drawText() {
    const { item } = this;
    const running = item.state === "answering";
    this.text.setAttribute("role", running ? "log" : "group");
    this.more.hidden = !item.short;
    this.copy.hidden = !this.isWhole;
    setText(this.stop, str(item.stop));
    this.stop.hidden = !item.stop;
    this.tools.hidden = this.more.hidden && !item.stop;
    const pieces = item.short && !this.isWhole ? item.short : item.pieces;
    const shape = JSON.stringify([pieces, item.state]);
    if (this.drawn.text === shape) return;
    this.drawn.text = shape;
    const wait = item.state === "waiting" ? make("span.ckv-wait.ckv-wait-text", { title: "Not begun yet" }) : null;
    const none = item.state === "done" && textOf(pieces) === "" ? make("span.ckv-hint", "wrote nothing") : null;
    const caret = running ? make("span.ckv-caret", { "aria-hidden": "true" }) : null;
    this.text.replaceChildren(...written(pieces), ...[wait, none, caret].filter((node) => node !== null));
  }
}

function outcomeOf({ outcome, outcome_word: word, state }) {
  if (state === "done" && outcome && outcome !== "none") return [outcomeMark(outcome, str(word))];
  const words = { waiting: "waiting", answering: "answering", done: outcome === "none" ? "not judged" : "–" }[state];
  return [make("span.ckv-hint", { text: words, title: words === "not judged" ? "No expected answer was given." : null })];
}

function memoryOf({ mib, share, reads, state }) {
  if (mib === null || mib === undefined)
    return state === "done" ? ["–"] : [make("span.ckv-wait", { title: "Known once the choice is made" })];
  const bar = make("i", { "aria-hidden": "true" });
  bar.style.setProperty("--share", String(Math.min(1, share)));
  const memory = make("span.ckv-memory", bar, make("span", str(mib)), make("span.ckv-share", percent(share)));
  return reads ? [memory, make("div.ckv-hint", str(reads))] : [memory];
}

export class AnswerTable {
  /** `follows` the choice of a variant, and makes it. */
  constructor(label, { follows = false } = {}) {
    this.follows = follows;
    this.rows = new Map();
    this.head = make("tr");
    this.body = make("tbody");
    this.keys = "";
    const table = make("table.ckv-table.ckv-answers.ckv-lines", make("caption.ckv-offscreen", label), make("thead", this.head), this.body);
    this.node = make("div.ckv-answers-box", table);
    if (follows) this.body.addEventListener("keydown", (event) => this.onKey(event));
  }

  draw(value) {
    const columns = list(value.columns);
    const shape = JSON.stringify(columns);
    if (shape !== this.keys) this.head.replaceChildren(...columns.map(headCell));
    this.keys = shape;
    const items = value.preview ? this.inPlace(list(value.rows)) : list(value.rows);
    const known = new Set(items.map((item) => item.index));
    for (const index of [...this.rows.keys()]) if (!known.has(index)) this.rows.delete(index);
    const nodes = items.map((item) => {
      const found = this.rows.get(item.index);
      // What can be chosen is known once the choice of entries is made.
      const row = found && (found.item.kept ?? false) === (item.kept ?? false) ? found : new Row(this, item);
      this.rows.set(item.index, row);
      row.draw(item, columns);
      return row.node;
    });
    if (nodes.length !== this.body.children.length || nodes.some((node, at) => this.body.children[at] !== node)) {
      this.body.replaceChildren(...nodes);
    }
    this.mark();
  }

  /** The rows of a preview in the order of those that are shown. */
  inPlace(items) {
    const order = [...this.body.children].map((node) => Number(node.dataset.variant));
    return items.toSorted((one, two) => order.indexOf(one.index) - order.indexOf(two.index));
  }

  choose(index) {
    chooseVariant(index);
    this.mark();
  }

  /** Where the address names none, the first that evicts is shown below. */
  mark() {
    if (!this.follows) return;
    const can = [...this.rows.values()].filter((row) => row.item.kept).map((row) => row.item.index);
    const named = chosenVariant();
    const chosen = named !== null && can.includes(named) ? named : Math.min(...can);
    for (const [index, row] of this.rows) {
      row.node.classList.toggle("ckv-chosen", index === chosen);
      if (row.item.kept) row.button.setAttribute("aria-pressed", String(index === chosen));
    }
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...this.body.querySelectorAll("button.ckv-choose")];
    const at = buttons.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    /** @type {HTMLElement} */ (buttons[Math.min(buttons.length - 1, Math.max(0, at + step))]).focus();
  }
}
