// How each method sees the full cache's own text, token by token.

import { list, make, onValue, setText, showEach, str } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { ForcedStrip } from "./forced_strip.js";

function part() {
  const name = make("h4.ckv-name");
  const strip = new ForcedStrip();
  const draw = (item) => {
    name.replaceChildren(marker(item.look), make("span", str(item.name)));
    strip.show(str(item.address) || null, str(item.name));
  };
  return { node: make("section.ckv-stack", name, strip.node), draw };
}

export default function mount(host) {
  const { root } = host;
  const words = make("p.ckv-section-text");
  const parts = make("div.ckv-grid");
  const show = showEach(parts, part);
  root.append(make("h3.ckv-section-name", "Fidelity to the full cache's text"), words, parts);
  setText(words, "At each token of the full cache's own text: whether the method's first choice is the same, and how far it is off.");

  onValue(host, (value) => {
    const strips = list(value?.strips);
    root.hidden = strips.length === 0;
    show(strips);
  });
}
