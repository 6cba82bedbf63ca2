// The address after Run, the browser's Back, and leaving a page.

import { settle } from "./drafts.js";

const here = () => location.pathname + location.search;
const loaded = here();

// Gradio would break off its own event stream first and then log, and show, a broken connection.
// The browser ends the stream itself when it leaves; and a click on a file's link never does. Only
// this one listener of Gradio's is left out: `() => client.close()`, as its text says.
const listen = window.addEventListener;
window.addEventListener = (type, ...rest) => {
  if (type !== "beforeunload" || !String(rest[0]).endsWith(".close()}")) listen.call(window, type, ...rest);
};

// After Run two entries of the browser's history share one page. Once that page is gone, another
// one that the browser takes for it has to load what the entry names.
let form = null;
window.addEventListener("popstate", (event) => {
  if (event.state?.ckvRun && !form && here() !== loaded) location.reload();
});

/** After Run: the address becomes the run's, and Back leads to the form as it was. For Gradio's
 * `js`: it gets the run's slug, empty where no run was started. */
export default function showAddress(slug) {
  if (!slug) return [];
  settle();
  const go = (change, path, name) => {
    const url = new URL(path, location.origin);
    url.searchParams.set(name, slug);
    const theme = new URLSearchParams(location.search).get("__theme");
    if (theme) url.searchParams.set("__theme", theme);
    history[change]({ ckvRun: slug }, "", url);
    return here();
  };
  const isFirst = form === null;
  form ??= { path: location.pathname, title: document.title };
  // After a reload, the run's name in the address brings back the same form.
  form.at = go("replaceState", form.path, "from");
  form.seen = form.run = go("pushState", "/run", "id");
  form.runTitle = `Run ${slug} - ${form.title.split(" - ").pop()}`;
  document.title = form.runTitle;
  if (isFirst) window.addEventListener("popstate", goBack);
  return [];
}

function goBack() {
  if (here() === form.seen) return; // to a section of the page
  form.seen = here();
  if (form.seen !== form.at && form.seen !== form.run) {
    location.reload();
    return;
  }
  const isForm = form.seen === form.at;
  document.title = isForm ? form.title : form.runTitle;
  /** @type {HTMLElement} */
  const bar = document.querySelector("#settings > button");
  if (bar && bar.classList.contains("open") !== isForm) bar.click();
  if (isForm) scrollTo(0, 0);
}
