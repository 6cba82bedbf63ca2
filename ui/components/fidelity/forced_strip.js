// Fidelity strip of one card: one cell per position of the full cache's own text.
// Fetched when seen; arrows move, Enter or a click opens both distributions.

import { clamp, fetchOk, list, make, nearView, percent, quietButton, setText, str } from "../../../assets/scripts/dom.js";

/** A differing token may be blank or empty: show a sign for it. */
export function visible(token) {
  if (token === undefined || token === "") return "⟨end⟩";
  return token.trim() === "" ? token.replace(/\n/g, "↵\n").replace(/ /g, "␣") : token;
}

/** A probability; what rounds to nothing is not nothing. */
const chanceOf = (value) => (value > 0 && value < 0.0005 ? "<0.1%" : percent(value));
const KL_STEPS = [0.01, 0.1, 1]; // nats; borders between the four heights of a cell's bar

export class ForcedStrip {
  constructor() {
    this.address = null;
    this.id = `strip-${Math.random().toString(36).slice(2)}`;
    this.at = 0;
    this.cells = [];
    this.box = make("div.ckv-row.ckv-strip-cells", {
      role: "listbox",
      tabindex: "0",
      "aria-orientation": "horizontal",
      onkeydown: (event) => this.onKey(event),
      onfocus: () => this.point(this.at),
    });
    this.message = make("p.ckv-hint.ckv-strip-message.ckv-num", { "aria-live": "polite" });
    this.detail = make("div.ckv-strip-detail", { hidden: true });
    this.node = make("div.ckv-stack.ckv-strip", { hidden: true }, this.box, this.message, this.detail);
    this.sight = nearView((seen) => seen && this.load());
  }

  /** Show the strip of an address; null hides it. */
  show(address, label) {
    this.node.hidden = !address;
    if (address === this.address) return;
    this.address = address;
    this.loaded = null;
    this.box.setAttribute(
      "aria-label",
      `Fidelity of ${label} at each token of the full cache's text. Arrow keys move, Enter shows candidates.`,
    );
    this.box.replaceChildren();
    this.detail.hidden = true;
    if (address) this.sight.observe(this.node);
  }

  async load() {
    if (this.loaded === this.address) return;
    const { address } = this;
    this.loaded = address;
    try {
      const value = await (await fetchOk(address)).json();
      if (address === this.address) this.draw(value);
    } catch (error) {
      this.loaded = null;
      setText(this.message, `The strip could not be fetched: ${error.message}.`);
    }
  }

  draw(value) {
    this.value = value;
    const top1 = list(value.top1);
    this.first = top1.indexOf(0);
    this.cells = list(value.kl).map((kl, at) => {
      const height = 1 + KL_STEPS.filter((step) => kl >= step).length;
      const differs = top1[at] === 0;
      return make(
        "span",
        {
          class: `ckv-cell ${differs ? "ckv-cell-differs" : ""} ${at === this.first ? "ckv-cell-first" : ""}`,
          style: `--step: ${height}`,
          role: "option",
          "aria-selected": "false",
          "aria-label": this.describe(at),
          id: `${this.id}-${at}`,
          onclick: () => this.open(at),
          onpointerenter: () => this.point(at),
        },
        [make("i", { "aria-hidden": "true" }), make("b", { "aria-hidden": "true", text: differs ? "✕" : "" })],
      );
    });
    this.box.replaceChildren(...this.cells);
    this.at = clamp(this.first, 0, Math.max(0, this.cells.length - 1));
    const same = top1.filter((each) => each === 1).length;
    const where = this.first < 0 ? "no divergence" : `first divergence at token ${this.first + 1}`;
    this.summary = `Same first choice at ${same} of n = ${top1.length} positions; ${where}.`;
    setText(this.message, this.summary);
  }

  describe(at) {
    const { tokens, kl, rank, top1 } = this.value;
    const text = visible(tokens[at]).replace(/\n/g, "");
    const figures = [
      Number.isFinite(kl[at]) ? `KL ${kl[at].toPrecision(3)} nats` : null,
      Number.isFinite(rank?.[at]) ? `rank ${rank[at]}` : null,
      top1?.[at] === 1 ? "same first choice" : "another first choice",
      at === this.first ? "first divergence" : null,
    ];
    return `token ${at + 1} “${text}”: ${figures.filter(Boolean).join(", ")}`;
  }

  point(at) {
    if (!this.cells[at]) return;
    this.cells[this.at]?.setAttribute("aria-selected", "false");
    this.at = at;
    this.cells[at].setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", this.cells[at].id);
    setText(this.message, this.describe(at));
  }

  open(at) {
    this.point(at);
    const step = list(this.value.steps)[at];
    this.detail.hidden = !step;
    if (!step) return;
    const column = (title, found) =>
      make("table.ckv-table.ckv-tight", [
        make("caption", { text: title }),
        make("tbody", [
          list(found).map((each) =>
            make("tr", [
              make("th", { scope: "row", text: visible(str(each.text)) }),
              make("td.ckv-num.ckv-right", chanceOf(each.probability)),
            ]),
          ),
        ]),
      ]);
    this.detail.replaceChildren(
      make("p", `Candidates for token ${at + 1}`),
      quietButton("Close", () => this.close()),
      column("Full cache", step.full),
      column("This variant", step.variant),
    );
  }

  close() {
    this.detail.hidden = true;
    this.box.focus();
  }

  onKey(event) {
    const last = this.cells.length - 1;
    const goals = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: last };
    if (event.key in goals) this.point(clamp(goals[event.key], 0, last));
    else if (event.key === "Enter" || event.key === " ") this.open(this.at);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }
}
