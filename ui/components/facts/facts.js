// What defines a run: a list of terms and their text.

import { list, make, onValue, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const { root } = host;
  const terms = make("dl.ckv-facts");
  root.append(terms);
  onValue(host, (value) => {
    terms.replaceChildren(
      ...list(value?.rows).flatMap((row) => [make("dt", str(row.label)), make("dd", { dir: "auto", text: str(row.text) })]),
    );
  });
}
