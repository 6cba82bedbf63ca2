// The dialog of keys, which `?` opens; the header's button does too.

import { button, make } from "../dom.js";

/** @type {[string, string[][]][]} */
const KEYS = [
  [
    "Everywhere",
    [
      ["?", "This list"],
      ["Esc", "Close a list, a menu or an editor; undo a selection"],
    ],
  ],
  ["Compare", [["Ctrl Enter", "Run"]]],
  [
    "Map of kept tokens",
    [
      ["← → ↑ ↓", "Move the cursor; with Shift ten steps"],
      ["Home End", "First and last token"],
      ["+ −", "Zoom in and out"],
      ["0", "Show the whole prompt"],
      ["PgUp PgDn", "Move the view"],
      ["Enter", "Pick the token or cell"],
    ],
  ],
  [
    "Prompt text",
    [
      ["← →", "Next token; with Shift mark a passage"],
      ["Enter", "Pick the token; in the search the next match"],
    ],
  ],
  [
    "Grid of methods and budgets",
    [
      ["← → ↑ ↓", "Move among the cells"],
      ["Enter", "Choose the cell"],
    ],
  ],
];

/** @type {HTMLDialogElement | null} */
let dialog = null;

function build() {
  const keys = (text) => text.split(" ").map((key) => make("kbd.ckv-key", key));
  const parts = KEYS.flatMap(([name, rows]) => [
    make("h3", name),
    make("dl", ...rows.map(([key, words]) => make("div", make("dt", ...keys(key)), make("dd", words)))),
  ]);
  const close = button("Close", () => dialog.close(), { class: "ckv-small", autofocus: true });
  const head = make("div.ckv-row.ckv-panel-head", make("h2", { id: "ckv-keys-name" }, "Keys"), close);
  return make("dialog.ckv.ckv-pop.ckv-keys-help", { "aria-labelledby": "ckv-keys-name" }, head, ...parts);
}

function show() {
  // Gradio confines our styles to its container.
  dialog ??= build();
  if (!dialog.isConnected) (document.querySelector("main") ?? document.body).append(dialog);
  if (!dialog.open) dialog.showModal();
}

addEventListener("click", ({ target }) => {
  if (target === dialog)
    dialog.close(); // beside what it holds
  else if (target instanceof Element && target.closest(".ckv-keys-button")) show();
});
addEventListener("keydown", (event) => {
  if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]")) return;
  event.preventDefault();
  show();
});
