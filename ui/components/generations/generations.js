// What every variant generates, side by side.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";
import { CardGrid } from "./cards.js";

export default function mount(host) {
  const { root } = host;
  const empty = make("p.ckv-empty", "Generated text appears here, one card per variant.");
  const answerLine = make("p.ckv-answer");
  const grid = new CardGrid();
  root.append(empty, answerLine, grid.node);

  onValue(host, (value) => {
    const wanted = list(value?.cards);
    empty.hidden = wanted.length > 0;
    answerLine.hidden = !value?.answer || wanted.length === 0;
    setText(answerLine, value?.answer ? `Expected answer: ${str(value.answer)}` : "");
    grid.draw(wanted);
  });
}
