// Where the reader is: the list of runs, when and with what this run was made, and its title.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const crumbs = make("p.ckv-row.ckv-crumbs");
  const title = make("h2.ckv-run-title");
  const answer = make("p.ckv-hint");
  host.root.append(crumbs, title, answer);

  onValue(host, (value) => {
    host.root.hidden = value === null;
    const parts = list(value?.crumbs).map((text) => make("span", str(text)));
    crumbs.replaceChildren(make("a.ckv-link.ckv-for-users", { href: "/runs", text: "Runs" }), ...parts);
    setText(title, str(value?.title));
    answer.hidden = !value?.answer;
    setText(answer, value?.answer ? `Expected answer: ${str(value.answer)}` : "");
  });
}
