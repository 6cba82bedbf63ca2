// What was typed into a form and not yet sent, kept in this tab until it is closed or New is pressed.

const REST_MS = 300;
const HIDDEN_MS = 1000;
const FILL_MS = 5000; // what fills the form may never come
const PREFIX = "ckv-draft-";
let isTyped = false;
let isFilled = false; // once the page has filled its form, from the address or from here
let isTooLong = false;
let filling = 0; // handlers that are about to
let timer = 0;
/** @type {{ slot: string, values: any[] } | null} */
let unsaved = null;

/** Who is logged in: another person at this browser finds nothing. */
const who = () => document.querySelector("#ckv-user")?.innerHTML ?? "";

/** One place for each thing that an address fills a form from. */
function slotOf(name) {
  const query = new URLSearchParams(location.search);
  query.delete("__theme");
  return `${PREFIX}${name}?${query}`;
}

function drop(prefix) {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(prefix)) sessionStorage.removeItem(key);
}

function save() {
  clearTimeout(timer);
  if (!unsaved) return;
  const { slot, values } = unsaved;
  const write = () => sessionStorage.setItem(slot, JSON.stringify({ who: who(), values }));
  unsaved = null;
  isTooLong = false;
  try {
    write();
  } catch {
    drop(PREFIX); // the browser keeps some 5 million characters of a site
    try {
      write();
    } catch {
      isTooLong = true;
    }
  }
}

/** For Gradio's `js`: keep the form's values, once typing rests. */
export function keep(name, values) {
  if (!isFilled && !isTyped) return [];
  unsaved = { slot: slotOf(name), values };
  clearTimeout(timer);
  timer = setTimeout(save, REST_MS);
  return [];
}

/** For Gradio's `js`: the values kept of a form of so many controls; none if somebody types already. */
export function restore(name, count) {
  isFilled = true;
  const draft = JSON.parse(sessionStorage.getItem(slotOf(name)) ?? "null");
  if (isTyped || draft?.who !== who() || draft.values.length !== count) return [];
  return draft.values;
}

function mark(count) {
  filling = Math.max(0, count);
  document.getElementById("ask")?.setAttribute("aria-busy", String(filling > 0));
}

/** For Gradio's `js`: a handler begins to fill the form. */
export function fills() {
  mark(filling + 1);
  return [];
}

export const isFilling = () => filling > 0;

/** Ends once no handler fills the form any more. */
export async function filled() {
  const due = Date.now() + FILL_MS;
  while (filling && Date.now() < due) await new Promise((done) => setTimeout(done, 50));
  mark(0);
}

/** For Gradio's `js`: ends once what a handler filled in stands in the form, which Gradio draws in a later frame. */
export async function settled() {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const hidden = new Promise((done) => setTimeout(done, HIDDEN_MS)); // a hidden page draws no frames
  await Promise.race([frame().then(frame), hidden]);
  mark(filling - 1);
  return [];
}

/** Before a run's page is opened: whether what was typed is kept. The run has it, so no question is needed. */
export function leave() {
  save();
  const isKept = !isTooLong;
  isTooLong = false;
  return isKept;
}

/** For Gradio's `js`: drop all that is kept of a form and open it blank. */
export function startAnew(name, path) {
  unsaved = null;
  isTyped = isFilled = isTooLong = false;
  drop(PREFIX + name);
  location.assign(path);
  return [];
}

// Gradio's own event of a text field comes with a key only: not of a paste, a deletion or an opened file.
for (const type of ["input", "change", "click", "focusout"]) {
  document.addEventListener(type, (event) => {
    /** @type {HTMLElement | null} */
    const button = document.querySelector("#draft-keep");
    const { target } = event;
    if (!button || (!event.isTrusted && type === "click") || !(target instanceof Element) || target.closest("#actions")) return;
    isTyped ||= type === "input";
    setTimeout(() => button.click()); // the field's own listener comes first
  });
}
addEventListener("pagehide", save);
addEventListener("beforeunload", (event) => {
  save();
  if (isTooLong) event.preventDefault(); // the browser asks before the page is left
});
