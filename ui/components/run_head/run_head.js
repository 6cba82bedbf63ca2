// Where the reader is: the list of runs, when and with what this run was made, and its title.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const crumbs = make("p.ckv-row.ckv-crumbs");
  const title = make("h2.ckv-run-title");
  const answer = make("p.ckv-hint");
  // A guest who only has a share link cannot follow links that ask for a login. Gradio confines our files
  // of styles to its container, in which nothing above holds both the header and this.
  const guestStyle = make("style");
  host.root.append(crumbs, title, answer, guestStyle);

  onValue(host, (value) => {
    host.root.hidden = value === null;
    guestStyle.textContent = value?.guest === true ? ".ckv-header nav, .ckv-for-users { display: none !important; }" : "";
    const parts = list(value?.crumbs).map((text) => make("span", str(text)));
    crumbs.replaceChildren(make("a.ckv-link.ckv-for-users", { href: "/runs", text: "Runs" }), ...parts);
    setText(title, str(value?.title));
    answer.hidden = !value?.answer;
    setText(answer, value?.answer ? `Expected answer: ${str(value.answer)}` : "");
  });
}
