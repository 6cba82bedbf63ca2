// Ctrl+Enter runs from anywhere on the page, and the link at the top leads to Run.

import { filled, isFilling } from "../../../assets/scripts/pages/drafts.js";
import notice from "./notice.js";

let isWaiting = false;

/** @type {() => any} */
const runButton = () => document.getElementById("run");

/** Run reads the form as it stands: while that is being filled in, the click waits. */
async function waitForForm(event) {
  if (!isFilling() || !(event.target instanceof Element) || !event.target.closest("#run")) return;
  event.stopImmediatePropagation();
  if (isWaiting) return;
  isWaiting = true;
  await filled();
  isWaiting = false;
  runButton().click();
}

export default function mount(host) {
  notice(host);
  document.addEventListener("click", waitForForm, true);
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
