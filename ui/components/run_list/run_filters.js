// Search, filters and sort of the list of runs: a plain GET form, so the address is the view.

import { list, make, select, str } from "../../../assets/scripts/dom.js";

export const KINDS = { compare: "One budget", sweep: "Several budgets", samples: "Many samples" };
let unfolded = false;
export function filterForm(query, choices) {
  const labelled = (text, node) => make("label.ckv-field", make("span", { text }), node);
  const input = (name, label, more = {}) =>
    labelled(label, make("input.ckv-input", { name, type: "text", value: str(query[name]), ...more }));
  const pick = (name, label, values, blank = "any", labels = {}) => {
    const given = str(query[name]);
    // An address may name what no run has (any more): the list is filtered by it all the same.
    const known = new Set([...list(values), ...(given && blank !== null ? [given] : [])]);
    const options = [...known].map((value) => [value, labels[value] ?? str(value)]);
    const all = blank === null ? options : [["", blank], ...options];
    return labelled(
      label,
      select(all, given, () => {}, { name, class: "ckv-input" }),
    );
  };
  const form = make("form.ckv-filters", { action: "/runs", method: "get", role: "search", "aria-label": "Runs" }, [
    make("label", [
      make("span.ckv-offscreen", "Search title, question, note and output"),
      make("input.ckv-input", { name: "text", type: "search", maxlength: "400", placeholder: "Search runs", value: str(query.text) }),
    ]),
    pick("model", "Model", choices.models),
    pick("method", "Method", choices.methods),
    pick("state", "State", choices.states),
    pick("kind", "Kind", Object.keys(KINDS), "any", KINDS),
    pick("answer", "Answer", ["kept", "lost"], "any", { kept: "no method missed it", lost: "a method missed it" }),
    input("since", "From day (UTC)", { type: "date" }),
    input("until", "To day (UTC)", { type: "date" }),
    pick("sort", "Sort", ["newest", "oldest", "title"], null),
    make("span.ckv-row", [
      make("button.ckv-button", { type: "submit", text: "Search" }),
      make("a.ckv-link", { href: "/runs", text: "Clear" }),
    ]),
  ]);
  const given = Object.keys(query).filter((name) => name !== "text").length;
  const more = make("button.ckv-button.ckv-more-filters", given ? `Filters (${given})` : "Filters");
  const fold = () => {
    form.dataset.folded = unfolded ? "" : "1";
    more.setAttribute("aria-expanded", String(unfolded));
  };
  more.addEventListener("click", () => {
    unfolded = !unfolded;
    fold();
  });
  form.firstElementChild.after(more);
  fold();
  // Empty fields would only make the address long.
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
  return form;
}
