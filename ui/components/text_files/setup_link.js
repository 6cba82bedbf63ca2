// Copies a link that opens the form filled in as it is now, without a run.

import { copyText, onValue, quietButton, setText, str } from "../../../assets/scripts/dom.js";

const WORDS = "Copy setup link";
const SHOWN_MS = 1500;

export default function mount(host) {
  const { root, props, trigger } = host;
  const ask = () => {
    props.value = null; // else the same setup again would be no change
    trigger("ask");
  };
  const copy = quietButton(WORDS, ask, { title: "A link that opens this form filled in, without running it" });
  root.append(copy);

  onValue(host, async (value) => {
    if (!value?.setup) return;
    const link = new URL(`/?setup=${encodeURIComponent(str(value.setup))}`, location.origin);
    setText(copy, (await copyText(link.href)) ? "Copied" : "Not copied");
    setTimeout(() => setText(copy, WORDS), SHOWN_MS);
  });
}
