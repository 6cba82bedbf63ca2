// The chosen cell of the grid: its text beside the full cache's, and what it cost.

import { chosenVariant } from "../../../assets/scripts/choice.js";
import { button, list, make, onChange, quietButton, str, written } from "../../../assets/scripts/dom.js";
import { marker, outcomeMark } from "../../../assets/scripts/marks.js";

export default function mount(host) {
  const { root, trigger } = host;
  const card = make("section.ckv-card.ckv-stack.ckv-chosen-cell", { "aria-label": "Chosen cell", "aria-live": "polite", hidden: true });
  root.append(card);
  let value = null;
  let whole = false; // whether long texts are shown to their ends

  function draw() {
    const cells = list(value?.cells);
    const named = (index) => cells.find((each) => each.index === index);
    const cell = named(chosenVariant()) ?? named(value?.chosen);
    card.hidden = !cell;
    if (!cell) return;
    const texts = [
      ["This cell", cell.pieces, cell.short],
      ["Full cache", cell.full, cell.short_full],
    ].filter(([, pieces]) => list(pieces).length > 0);
    const isCut = texts.some(([, , short]) => short);
    const toggle = () => {
      whole = !whole;
      draw();
      card.querySelector("button")?.focus();
    };
    card.replaceChildren(
      make("p.ckv-row", [
        make("span.ckv-name", marker(cell.look), make("b", { text: str(cell.name) })),
        make("span.ckv-subdued", { text: `at ${str(cell.at)}` }),
        cell.outcome ? outcomeMark(cell.outcome, str(cell.outcome_words)) : null,
      ]),
      make(
        "dl",
        ...texts.flatMap(([name, pieces, short]) => [
          make("dt.ckv-hint", { text: name }),
          make("dd.ckv-generated", { dir: "auto" }, written((!whole && short) || pieces)),
        ]),
      ),
      make("p.ckv-hint", { text: str(cell.cost) }),
      make("p.ckv-row", [
        isCut
          ? quietButton(whole ? "Only the difference" : "Whole texts", toggle, { title: "Long texts are cut around the difference" })
          : null,
        value.opens
          ? button(`Open ${str(cell.at)} as a result`, () => trigger("open", { index: cell.index }), {
              title: "All methods at this budget, with sliders and charts.",
            })
          : null,
      ]),
    );
  }

  onChange(host, (given) => {
    value = given;
    draw();
  });

  window.addEventListener("hashchange", () => root.isConnected && draw());
}
