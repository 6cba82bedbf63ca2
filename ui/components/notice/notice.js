// One sentence to the reader, plain, a warning or an error at a field, and links to where to go on.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";
import { markField } from "./wrong_field.js";

const OPENING_FRAMES = 300; // that a busy browser takes to show an opened section

export default function mount(host) {
  const { root, props } = host;
  const line = make("p.ckv-notice", { hidden: true });
  const isOfRun = root.closest("#notice") !== null;
  root.append(line);
  let field = "";
  let opening = 0;
  let isLate = false; // the form has changed since Run was pressed

  /** An error stands beside its field where that is seen, and here where it is not. */
  const place = () => {
    line.hidden = line.textContent === "" || document.getElementById(`wrong-${field}`)?.checkVisibility() === true;
  };
  const folds = new ResizeObserver(place);

  function unmark() {
    folds.disconnect();
    cancelAnimationFrame(opening);
    markField(field, line, "");
    field = "";
  }

  /** Of a folded section the fields may come some frames after it is opened. */
  function mark(value, tries = OPENING_FRAMES) {
    const fold = document.querySelector(`#${CSS.escape(str(value.within) || "-")} > button:not(.open)`);
    if (isOfRun && fold instanceof HTMLElement && tries === OPENING_FRAMES) fold.click();
    field = str(value.field);
    const block = markField(field, line, str(value.text));
    if (block) folds.observe(block);
    if (!isOfRun || tries === 0) return;
    if (block?.checkVisibility()) block.scrollIntoView({ block: "center" });
    else opening = requestAnimationFrame(() => mark(value, tries - 1));
  }

  // A refusal of a form no longer holds once the reader changes the form, or runs it again.
  function forget(event) {
    const part = event.type === "input" ? "*" : '[role="option"], :is(#context-bar, #variants) button';
    const changed = event.target.closest(`#ask :is(${part}), #run`);
    if (changed) isLate = changed.id !== "run";
    if (!changed || line.dataset.tone !== "error") return;
    line.hidden = true;
    unmark();
    // The same sentence shown again would be no change, and a change of our own draws nothing.
    props.value = { text: "", tone: "" };
  }

  if (isOfRun) for (const type of ["input", "click"]) document.addEventListener(type, forget, true);

  onValue(host, (sent) => {
    const value = isLate && sent?.tone === "error" && sent.field ? { text: "", tone: "" } : sent;
    if (value !== sent) props.value = value;
    line.dataset.tone = str(value?.tone);
    line.setAttribute("role", value?.tone === "error" ? "alert" : "status");
    const links = list(value?.links).map(([words, href]) => make("a.ckv-link", { text: str(words), href: str(href) }));
    if (links.length) line.replaceChildren(str(value?.text), ...links.flatMap((link) => [" ", link]));
    else setText(line, str(value?.text));
    unmark();
    if (value?.field) mark(value);
    place();
  });
}
