// Questions to a kept cache and their answers, the newest first.

import { list, make, onValue, setText, showEach, showText, str } from "../../assets/scripts/dom.js";

function card() {
  const question = make("h3.ckv-question");
  const text = make("div.ckv-text");
  const note = make("p.ckv-notice", { role: "status" });
  const draw = (item) => {
    setText(question, str(item.question));
    showText(text, item.text);
    note.dataset.tone = str(item.tone);
    showText(note, item.message);
  };
  return { node: make("section.ckv-card.ckv-stack", question, text, note), draw };
}

export default function mount(host) {
  const show = showEach(host.root, card);
  onValue(host, (value) => show(list(value?.rows)));
}
