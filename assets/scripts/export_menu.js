// One button that opens the files of a chart: pictures, data, the chart as a table.

import { make, menu } from "./dom.js";

/**
 * A menu of acts: [text, act] pairs, or a link in their place.
 *
 * @param {string} name of the chart, for readers of the screen
 * @param {Array<[string, () => any] | Node>} items
 */
export function exportMenu(name, items) {
  const item = (each) => (Array.isArray(each) ? make("button.ckv-button.ckv-quiet", { text: each[0], onclick: each[1] }) : each);
  const title = "Save this chart, or read it as a table";
  const summary = make("summary.ckv-button.ckv-quiet", { "aria-label": `Export: ${name}`, title }, "Export");
  const node = menu(summary, make("div.ckv-pop.ckv-export", items.map(item)));
  node.querySelector(".ckv-export").addEventListener("click", () => {
    node.open = false;
  });
  return node;
}
