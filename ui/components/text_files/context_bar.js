// The foot of the text's box: opens a file, offers examples, counts tokens and cuts what is too long.

import { button, list, make, menu, onValue, setText, shape, str, whole } from "../../../assets/scripts/dom.js";
import { markField } from "../notice/wrong_field.js";
import { area, fileOpener, fill, onDrop, put } from "./text_file.js";

const MAX_CHARS = 4_000_000;
const BIG_CHARS = 200_000;
const REST_MS = 600;
const BIG_REST_MS = 2500;
const SHOWN = 2; // examples beside the button; the others are in a menu
const SHEET = "M9 1.8H4.2a1 1 0 0 0-1 1v10.4a1 1 0 0 0 1 1h7.6a1 1 0 0 0 1-1V5.6zM9 1.8v3.8h3.8";

/** Links to the examples, one stop of the keyboard; arrow keys lead from one to the next. */
function exampleLinks(titles, pick) {
  const links = titles.map((text, at) => make("button.ckv-link", { text, title: "Fill in this example", onclick: () => pick(at) }));
  const more = make("summary.ckv-link", { text: `${links.length - SHOWN} more`, title: "Further examples" });
  const rest = menu(more, make("div.ckv-pop", links.slice(SHOWN)));
  for (const each of links.slice(SHOWN)) each.addEventListener("click", () => rest.removeAttribute("open"));
  const stops = [...links.slice(0, SHOWN), more];
  for (const [at, stop] of stops.entries()) {
    stop.tabIndex = at ? -1 : 0;
    stop.addEventListener("keydown", ({ key }) => {
      if (key === "ArrowRight") stops[at + 1]?.focus();
      if (key === "ArrowLeft") stops[at - 1]?.focus();
    });
  }
  return [make("span.ckv-hint", "Try"), ...links.slice(0, SHOWN), rest];
}

export default function mount(host) {
  const { root, props, trigger } = host;
  const { open, busy, say: tell, message } = fileOpener("Open file", read);
  open[0].classList.add("ckv-quiet");
  open[0].title = "A text, code, PDF or DOCX file";
  open[0].prepend(shape("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, shape("path", { d: SHEET })));
  const links = exampleLinks(list(props.examples).map(str), (at) => trigger("example", { at }));
  const examples = make("span.ckv-row.ckv-examples", { role: "group", "aria-label": "Examples" }, links);
  const counted = make("span.ckv-notice.ckv-num", { role: "status" });
  const cut = button("", useFirst, { hidden: true, title: "Cut the text so that it fits into the model" });
  root.append(
    make("div.ckv-row.ckv-text-foot", open, examples, make("span.ckv-row.ckv-count", counted, cut)),
    make("div.ckv-text-lines", message, make("div", { "data-errors-of": "context" })),
  );

  let timer = null;
  let field = "";
  let first = 0; // characters that fit, where not all do

  function read([file]) {
    tell(`Reading ${file.name}…`);
    return fill(area("context"), file, MAX_CHARS, ". Shorten it.");
  }

  /** Characters are the server's: code points, of which some are two for JavaScript. */
  function useFirst() {
    const box = area("context");
    put(
      box,
      Array.from(box.value.slice(0, 2 * first))
        .slice(0, first)
        .join(""),
    );
    box.focus();
  }

  /** Show how long the prompt is, or beside a field why it cannot be counted. */
  function say(value) {
    const text = str(value.text);
    markField(field, counted, "");
    field = markField(str(value.field), counted, text) ? value.field : "";
    counted.dataset.tone = str(value.tone);
    setText(counted, value.count ? str(value.count) : field ? "" : text);
    first = Number(value.first_chars) || 0;
    cut.hidden = !first;
    setText(cut, first ? `Use the first ${whole(Number(value.first_tokens))} tokens` : "");
  }

  function ask(text) {
    clearTimeout(timer);
    const rest = text.length > BIG_CHARS ? BIG_REST_MS : REST_MS;
    say({ text: text.trim() === "" ? "" : "counting…" });
    props.value = { text: "", tone: "" }; // else the same count again would be no change
    timer = setTimeout(() => {
      if (root.isConnected) trigger("count");
    }, rest);
  }

  function onInput(event) {
    if (!root.isConnected) document.removeEventListener("input", onInput);
    else if (event.target.closest("#context, #question")) ask(area("context").value);
  }

  document.addEventListener("input", onInput);
  onDrop("#text-box", (files) => busy(() => read(files)));

  onValue(host, (value) => say(value ?? {}));
}
