// Ctrl+Enter runs from anywhere on the page, and the link at the top leads to Run.

import notice from "./notice.js";

/** @type {() => any} */
const runButton = () => document.getElementById("run");

export default function mount(host) {
  notice(host);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.repeat) return;
    if (!runButton() || runButton().disabled) return;
    event.preventDefault();
    // A field whose value counts only when it is left (a typed model) says it first.
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    setTimeout(() => runButton().click());
  });

  // The page's base is not its address, so a plain link to #run would leave the page.
  document.querySelector(".ckv-skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    runButton().focus();
  });

  runButton()?.setAttribute("aria-keyshortcuts", "Control+Enter Meta+Enter");
}
