// Gradio copies every property of every component at each update with structuredClone. Plain
// values are their own copies, and for a function the browser builds an error and its stack anew.
(() => {
  const clone = window.structuredClone;
  const refused = new DOMException("A function cannot be cloned.", "DataCloneError");
  window.structuredClone = (value, options) => {
    if (typeof value === "function") throw refused;
    const isPlain = value === null || !["object", "symbol"].includes(typeof value);
    return isPlain ? value : clone(value, options);
  };
})();
