// Words of the glossary: a button in the text that shows what it means, by mouse, key or touch.

import { make } from "../dom.js";
import { hideTip, showTip } from "../tip.js";

/** What each word means, from the page's head. */
const meanings = JSON.parse(document.getElementById("ckv-words").textContent);
// Gradio shows the line below a field's name as plain text: its words are found here.
const named = new Map(
  Object.keys(meanings).flatMap((word) => [word, `${word}s`, word.replace(/y$/, "ies")].map((form) => [form.toLowerCase(), word])),
);
const pattern = new RegExp(`\\b(${[...named.keys()].sort((a, b) => b.length - a.length).join("|")})\\b`, "i");

function explain(line) {
  line.dataset.terms = "";
  const parts = line.textContent.split(pattern);
  const seen = new Set();
  if (parts.length === 1) return;
  line.replaceChildren(
    ...parts.map((part, at) => {
      const word = at % 2 ? named.get(part.toLowerCase()) : undefined;
      if (!word || seen.has(word)) return part;
      seen.add(word);
      // No button: the line lies in the field's label, which would then be the button's own.
      return make("span.ckv-term", { tabindex: "0", role: "button", "aria-label": `${part}, explain`, "data-word": word }, part);
    }),
  );
}

let waits = false;
new MutationObserver(() => {
  if (waits) return;
  waits = true;
  setTimeout(() => {
    waits = false;
    document.querySelectorAll(".info-text:not([data-terms])").forEach(explain);
  }, 250);
}).observe(document.documentElement, { childList: true, subtree: true });

const show = (term) => showTip(term, meanings[term.dataset.word ?? term.value]);
const termOf = (event) => event.target instanceof Element && event.target.closest(".ckv-term");

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const term = termOf(event);
    if (term) show(term);
  });
}
document.addEventListener("pointerout", (event) => {
  if (termOf(event) && document.activeElement !== termOf(event)) hideTip();
});
document.addEventListener("focusout", (event) => {
  if (termOf(event)) hideTip();
});
// Within a label, a click would go on to its field; on touch it is what shows the words.
document.addEventListener(
  "click",
  (event) => {
    const term = termOf(event);
    // A script's own click, by which a form is kept, is nobody's elsewhere.
    if (!term) return event.isTrusted && hideTip();
    event.preventDefault();
    show(term);
  },
  true,
);
