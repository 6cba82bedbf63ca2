// Questions to a kept cache and their answers, the newest first.

import { list, make, onValue, setText, str } from "../../assets/scripts/dom.js";

function answer() {
  const question = make("h3.ckv-question");
  const text = make("div.ckv-text");
  const told = make("p.ckv-notice", { role: "status" });
  return { question, text, told, node: make("section.ckv-card", question, text, told) };
}

export default function mount(host) {
  const { root } = host;
  const rows = [];

  onValue(host, (value) => {
    const asked = list(value?.rows);
    while (rows.length > asked.length) rows.pop().node.remove();
    asked.forEach((item, at) => {
      if (!rows[at]) {
        rows[at] = answer();
        root.append(rows[at].node);
      }
      setText(rows[at].question, str(item.question));
      setText(rows[at].text, str(item.text));
      rows[at].text.hidden = !item.text;
      rows[at].told.dataset.tone = str(item.tone);
      setText(rows[at].told, str(item.told));
      rows[at].told.hidden = !item.told;
    });
  });
}
