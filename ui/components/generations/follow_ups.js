// Answers to follow-up questions: one row of cards per question.

import { list, make, onValue, setText, showEach, str } from "../../../assets/scripts/dom.js";
import { CardGrid } from "./cards.js";

function row() {
  const name = make("h4.ckv-question");
  const grid = new CardGrid();
  const draw = (item, at) => {
    setText(name, `${at + 1}. ${str(item.question)}`);
    grid.draw(list(item.cards));
  };
  return { node: make("section", name, grid.node), draw };
}

export default function mount(host) {
  const { root } = host;
  const words = "All methods answer each question from their evicted cache; the full cache's answer is the reference.";
  const rows = make("div.ckv-stack");
  const show = showEach(rows, row);
  root.append(make("h3.ckv-section-name", "Follow-up questions"), make("p.ckv-subdued.ckv-section-text", words), rows);

  onValue(host, (value) => {
    const questions = list(value?.questions);
    root.hidden = questions.length === 0;
    show(questions);
  });
}
