// "Add a method": a search, and the methods in their three groups, one line each.

import { list, make, menu, setText, str } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";

/**
 * @param {any[]} groups as the server offers them
 * @param {(method: any) => boolean} isChosen
 * @param {(method: any) => void} add
 */
export function addMethod(groups, isChosen, add) {
  const status = make("p.ckv-hint", { role: "status" });
  const search = make("input.ckv-input", {
    type: "search",
    placeholder: "Search methods",
    "aria-label": "Search methods",
    oninput: filter,
  });
  const rows = [];
  const sections = groups.map((group) =>
    make("section", { "aria-label": str(group.name) }, [
      make("b", { text: str(group.name) }),
      make("p.ckv-hint", str(group.note)),
      ...list(group.methods).map((method) => row(method, group)),
    ]),
  );
  const summary = make("summary.ckv-chip.ckv-add", "Add a method");
  const pop = make("div.ckv-pop", { role: "dialog", "aria-label": "Add a method" }, [search, status, make("div.ckv-add-list", sections)]);
  const node = menu(summary, pop);

  function row(method, group) {
    const versions = list(method.versions).length ? "criticalkv" : "";
    const words = `${method.label} ${method.words} ${group.name} ${versions}`.toLowerCase();
    const name = make("span.ckv-name", marker(method.look), str(method.label));
    const button = make("button.ckv-option", { title: str(method.summary), onclick: () => take(method, button) }, [
      name,
      make("span.ckv-hint", str(method.summary)),
    ]);
    rows.push({ button, method, words });
    return button;
  }

  function take(method, button) {
    add(method);
    setText(status, `${method.label} is added.`);
    mark();
    if (document.activeElement === button || document.activeElement === document.body) search.focus();
  }

  const found = () => rows.filter(({ button }) => !button.hidden && !button.disabled).map(({ button }) => button);

  function mark() {
    for (const { button, method } of rows) button.disabled = isChosen(method);
  }

  /** Methods that hold every word typed; an empty group goes with its rows. */
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { button, words: own } of rows) button.hidden = !words.every((word) => own.includes(word));
    for (const each of sections) each.hidden = !each.querySelector("button:not([hidden])");
    const count = rows.filter(({ button }) => !button.hidden).length;
    setText(status, words.length ? `${count} of ${rows.length} methods${count ? "" : "; try fewer letters"}.` : "");
  }

  pop.addEventListener("keydown", (event) => {
    const buttons = found();
    const at = buttons.indexOf(/** @type {any} */ (document.activeElement));
    if (event.key === "Enter" && event.target === search && search.value) buttons[0]?.click();
    else if (event.key === "ArrowDown") buttons[Math.min(at + 1, buttons.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (buttons[at - 1] ?? search).focus();
    else return;
    event.preventDefault();
  });
  node.addEventListener("toggle", () => {
    if (!node.open) return;
    search.value = "";
    filter();
    mark();
    search.focus();
  });
  return node;
}
