// Which column of a file of samples is read as which of ours, to be changed, with the first samples.

import { list, make, onChange, select, showText, str } from "../../../assets/scripts/dom.js";
import { put } from "./text_file.js";

const NONE = ["", "–"];

export default function mount(host) {
  const { root } = host;
  const text = make("p.ckv-hint");
  const table = make("table.ckv-table.ckv-sample-map");
  root.append(table, text);

  /** Write `ours=theirs` of all that differ. */
  function choose() {
    const chosen = [...table.querySelectorAll("select")].filter(({ name, value }) => value && value !== name);
    const text = chosen.map(({ name, value }) => `${name}=${value}`).join(", ");
    put(document.querySelector("#study-columns :is(input, textarea)"), text);
  }

  onChange(host, (value) => {
    root.hidden = value === null;
    if (value === null) return;
    const names = [NONE, ...list(value.theirs).map((name) => [str(name), str(name)])];
    const samples = Math.max(0, ...list(value.rows).map((row) => list(row.values).length));
    const heads = ["Read as", "Column of the file", ...Array.from({ length: samples }, (_, at) => `Sample ${at + 1}`)];
    const row = ({ own, from, help, values }) =>
      make("tr", [
        make("th", { scope: "row", title: str(help), text: str(own) }),
        make(
          "td",
          select(names, str(from), choose, { name: str(own), "aria-label": `Column read as ${str(own)}: ${str(help)}`, title: str(help) }),
        ),
        ...list(values).map((each) => make("td", { dir: "auto", text: str(each) || "–" })),
      ]);
    table.replaceChildren(
      make("thead", make("tr", ...heads.map((text) => make("th", { scope: "col", text })))),
      make("tbody", ...list(value.rows).map(row)),
    );
    showText(text, [value.text, value.unread].filter(Boolean).map(str).join(" "));
  });
}
