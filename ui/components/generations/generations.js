// What every variant generates, side by side.

import { list, make, onValue, showText, str } from "../../../assets/scripts/dom.js";
import { CardGrid } from "./cards.js";

export default function mount(host) {
  const empty = make("p.ckv-empty", "Generated text appears here, one card per variant.");
  const answer = make("p.ckv-answer");
  const grid = new CardGrid();
  host.root.append(empty, answer, grid.node);

  onValue(host, (value) => {
    const cards = list(value?.cards);
    empty.hidden = cards.length > 0;
    showText(answer, value?.answer && cards.length ? `Expected answer: ${str(value.answer)}` : "");
    grid.draw(cards);
  });
}
