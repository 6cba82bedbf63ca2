// The line that opens and closes the rest of its column: nothing of a closed one is fetched or drawn.

import { make, onValue, setText, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const column = host.element.closest(".ckv-fold");
  const title = make("span.ckv-fold-title");
  const hint = make("span.ckv-hint");
  const button = make("button.ckv-fold-line", { "aria-expanded": "false", onclick: toggle }, title, hint);
  const head = make("h2", button);
  host.root.append(head);

  function toggle() {
    const isOpen = column.toggleAttribute("data-open");
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) host.trigger("expand");
  }

  onValue(host, (value) => {
    column.toggleAttribute("data-nothing", value === null);
    setText(title, str(value?.title));
    setText(hint, str(value?.hint));
  });
}
