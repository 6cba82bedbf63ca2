// One sentence to the reader, plain, a warning or an error, and links to where to go on.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const { root, props } = host;
  const line = make("p.ckv-notice", { hidden: true });
  root.append(line);

  // A refusal of a form no longer holds once the reader changes the form.
  function forget(event) {
    const part = event.type === "input" ? "*" : '[role="option"], .example-row button';
    if (!event.target.closest(`#settings :is(${part})`) || line.dataset.tone !== "error") return;
    line.hidden = true;
    // The same sentence said again would be no change, and a change of our own draws nothing.
    props.value = { text: "", tone: "" };
  }

  if (root.closest("#notice")) for (const type of ["input", "click"]) document.addEventListener(type, forget, true);

  onValue(host, (value) => {
    const text = str(value?.text);
    line.hidden = text === "";
    line.dataset.tone = str(value?.tone);
    line.setAttribute("role", value?.tone === "error" ? "alert" : "status");
    const links = list(value?.links).map(([words, href]) => make("a.ckv-link", { text: str(words), href: str(href) }));
    if (links.length) line.replaceChildren(text, ...links.flatMap((link) => [" ", link]));
    else setText(line, text);
  });
}
