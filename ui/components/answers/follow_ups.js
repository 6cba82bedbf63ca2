// Answers to follow-up questions: a table per question.

import { list, make, onValue, setText, showEach, str } from "../../../assets/scripts/dom.js";
import { AnswerTable } from "./table.js";

function section() {
  const name = make("h4.ckv-question");
  const table = new AnswerTable("Answers to a follow-up question");
  const draw = (item, at) => {
    setText(name, `${at + 1}. ${str(item.question)}`);
    table.draw(item);
  };
  return { node: make("section", name, make("div.ckv-card.ckv-flush", table.node)), draw };
}

export default function mount(host) {
  const { root } = host;
  const words = "All methods answer each question from their evicted cache; the full cache's answer is the reference.";
  const parts = make("div.ckv-stack");
  const show = showEach(parts, section);
  root.append(make("h3.ckv-section-name", "Follow-up questions"), make("p.ckv-section-text", words), parts);

  onValue(host, (value) => {
    const questions = list(value?.questions);
    root.hidden = questions.length === 0;
    show(questions);
  });
}
