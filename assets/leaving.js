// Leaving a page, and going back to one that has shown two addresses.
(() => {
  // Gradio would break off its own event stream first and then log, and show, a broken connection.
  // The browser ends the stream itself when it leaves; and a click on a file's link never does.
  window.addEventListener("beforeunload", (event) => event.stopImmediatePropagation());

  // After Run two entries of the browser's history share one page (assets/address.js). Once that
  // page is gone, another one that the browser takes for it has to load what the entry names.
  const here = () => location.pathname + location.search;
  const loaded = here();
  window.addEventListener("popstate", (event) => {
    if (event.state?.ckvRun && !window.ckvForm && here() !== loaded) location.reload();
  });
})();
