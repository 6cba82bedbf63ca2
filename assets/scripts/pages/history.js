// From Run to the run's page, and leaving a page.

import { leave } from "./drafts.js";
import { watchRun } from "./toasts.js";

// Gradio would break off its own event stream first and then log, and show, a broken connection.
// The browser ends the stream itself when it leaves; and a click on a file's link never does. Only
// this one listener of Gradio's is left out: `() => client.close()`, as its text says.
const listen = window.addEventListener;
window.addEventListener = (type, ...rest) => {
  if (type !== "beforeunload" || !String(rest[0]).endsWith(".close()}")) listen.call(window, type, ...rest);
};

/** After Run, for Gradio's `js`: go to the page of the run; the slug is empty where none was started.
 * Back leads to the form as it was typed, or filled in from the run where that was too long to keep. */
export default function openRun(slug) {
  if (!slug) return [];
  const run = encodeURIComponent(slug);
  if (!leave()) history.replaceState(null, "", `/?from=${run}`);
  watchRun(slug);
  location.assign(`/run?id=${run}`);
  return [];
}
