// One sentence to the reader, plain, a warning or an error at a field, and links to where to go on.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";

/** Mark a wrong field and say beside it what is wrong; returns what undoes that. */
function markField(id, text) {
  const block = document.getElementById(id);
  const group = block?.querySelector("[role=group]"); // of boxes, each of which is right
  const field = group ?? block?.querySelector("textarea, input, select");
  if (!block || !field) return null;
  const beside = make("p.ckv-notice.ckv-wrong", { id: `wrong-${id}`, "data-tone": "error", text });
  const described = field.getAttribute("aria-describedby");
  document.getElementById(beside.id)?.remove();
  block.append(beside);
  if (!group) field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", [described, beside.id].filter(Boolean).join(" "));
  return () => {
    beside.remove();
    field.removeAttribute("aria-invalid");
    if (described) field.setAttribute("aria-describedby", described);
    else field.removeAttribute("aria-describedby");
  };
}

export default function mount(host) {
  const { root, props } = host;
  const line = make("p.ckv-notice", { hidden: true });
  const isOfRun = root.closest("#notice") !== null;
  root.append(line);
  let unmark = null;
  let opening = 0;

  /** Of a folded section the fields may come some frames after it is opened. */
  function mark(value, tries = 60) {
    const fold = document.querySelector(`#${CSS.escape(str(value.within) || "-")} > button:not(.open)`);
    if (isOfRun && fold instanceof HTMLElement && tries === 60) fold.click();
    unmark?.();
    unmark = markField(str(value.field), str(value.text));
    const block = document.getElementById(str(value.field));
    if (!isOfRun || tries === 0) return;
    if (unmark && block?.checkVisibility()) block.scrollIntoView({ block: "center" });
    else opening = requestAnimationFrame(() => mark(value, tries - 1));
  }

  // A refusal of a form no longer holds once the reader changes the form.
  function forget(event) {
    const part = event.type === "input" ? "*" : '[role="option"], .example-row button';
    if (!event.target.closest(`:is(#settings, #new-study) :is(${part})`) || line.dataset.tone !== "error") return;
    line.hidden = true;
    unmark?.();
    unmark = null;
    // The same sentence said again would be no change, and a change of our own draws nothing.
    props.value = { text: "", tone: "" };
  }

  if (isOfRun) for (const type of ["input", "click"]) document.addEventListener(type, forget, true);

  onValue(host, (value) => {
    const text = str(value?.text);
    line.hidden = text === "";
    line.dataset.tone = str(value?.tone);
    line.setAttribute("role", value?.tone === "error" ? "alert" : "status");
    const links = list(value?.links).map(([words, href]) => make("a.ckv-link", { text: str(words), href: str(href) }));
    if (links.length) line.replaceChildren(text, ...links.flatMap((link) => [" ", link]));
    else setText(line, text);
    cancelAnimationFrame(opening);
    unmark?.();
    unmark = null;
    if (value?.field) mark(value);
  });
}
