// Answers to follow-up questions: one row of cards per question.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";
import { CardGrid } from "./cards.js";

export default function mount(host) {
  const { root } = host;
  const heading = make("h3.ckv-section-name", "Follow-up questions");
  const words = make(
    "p.ckv-subdued.ckv-section-text",
    "Each is asked of the same evicted caches and compared with the full cache's answer.",
  );
  const rows = make("div.ckv-follow-ups");
  root.append(heading, words, rows);
  const drawn = [];

  onValue(host, (value) => {
    const questions = list(value?.questions);
    root.hidden = questions.length === 0;
    while (drawn.length > questions.length) drawn.pop().node.remove();
    questions.forEach((item, at) => {
      if (!drawn[at]) {
        const name = make("h4.ckv-question");
        const grid = new CardGrid();
        drawn[at] = { name, grid, node: make("section", name, grid.node) };
        rows.append(drawn[at].node);
      }
      setText(drawn[at].name, `${at + 1}. ${str(item.question)}`);
      drawn[at].grid.draw(list(item.cards));
    });
  });
}
