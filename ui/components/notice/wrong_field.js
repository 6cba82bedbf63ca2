// What is wrong with a field: marked, and shown once beside it, whichever lines of the page find it.

import { make, setText } from "../../../assets/scripts/dom.js";

/** Of each field's block, the sentences by the line that says them; the last one is shown. */
const sentencesOf = new WeakMap();

/**
 * Say beside a field what a line finds wrong with it, or with no text that it finds nothing wrong.
 *
 * It stands below the field, or in what has `data-errors-of` with the field's id.
 *
 * @returns the block of the field, null where the page has none
 */
export function markField(id, line, text) {
  const block = document.getElementById(id);
  const group = block?.querySelector("[role=group]"); // of boxes, each of which is right
  const field = group ?? block?.querySelector("textarea, input, select");
  if (!block || !field) return null;
  const sentences = sentencesOf.get(block) ?? new Map();
  sentencesOf.set(block, sentences);
  sentences.delete(line);
  if (text) sentences.set(line, text);
  const shown = [...sentences.values()].at(-1);
  const name = `wrong-${id}`;
  const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((each) => each !== name);
  let beside = document.getElementById(name);
  if (!shown) beside?.remove();
  else if (!beside) {
    beside = make("p.ckv-notice.ckv-wrong", { id: name, role: "alert", "data-tone": "error" });
    (document.querySelector(`[data-errors-of="${id}"]`) ?? block).append(beside);
  }
  if (shown) setText(beside, shown);
  if (shown && !group) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
  const described = (shown ? [...others, name] : others).filter(Boolean).join(" ");
  if (described) field.setAttribute("aria-describedby", described);
  else field.removeAttribute("aria-describedby");
  return block;
}
