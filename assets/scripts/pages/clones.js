// Gradio copies every property of every component at each update with structuredClone: some 26,000
// texts and 5,500 functions before a changed alpha's map is drawn. A plain value is its own copy, and
// for a function, which cannot be copied, the browser would build an error and its stack each time.
// Without this the map comes half a second later (docs/explanation/performance.md). Gradio's issue tracker had
// no issue of it that we found (6.31).

const clone = window.structuredClone;
const refused = new DOMException("A function cannot be cloned.", "DataCloneError");

/** @param {any} value @param {StructuredSerializeOptions} [options] */
window.structuredClone = (value, options) => {
  if (typeof value === "function") throw refused;
  const isPlain = value === null || !["object", "symbol"].includes(typeof value);
  return isPlain ? value : clone(value, options);
};
