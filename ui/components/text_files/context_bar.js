// Reads a text file in the browser and asks for a token count once typing rests.

import { make, onValue, setText, str } from "../../../assets/scripts/dom.js";
import { markField } from "../notice/wrong_field.js";
import { area, fileOpener, fill } from "./text_file.js";

const MAX_CHARS = 4_000_000;
const BIG_CHARS = 200_000;
const REST_MS = 600;
const BIG_REST_MS = 2500;

export default function mount(host) {
  const { root, props, trigger } = host;
  const { open, message } = fileOpener("Open a text file", ([file]) => fill(area("context"), file, MAX_CHARS, ". Shorten it."));
  const counted = make("span.ckv-notice.ckv-context-count.ckv-num", { role: "status" });
  root.append(make("div.ckv-row", open, message, counted));

  let timer = null;
  let field = "";

  /** Show how long the prompt is, or beside a field why it cannot be counted. */
  function say(text, tone, wrong) {
    markField(field, counted, "");
    field = markField(wrong, counted, text) ? wrong : "";
    counted.dataset.tone = tone;
    setText(counted, field ? "" : text);
  }

  function ask(text) {
    clearTimeout(timer);
    const rest = text.length > BIG_CHARS ? BIG_REST_MS : REST_MS;
    say(text.trim() === "" ? "" : "counting…", "", "");
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

  onValue(host, (value) => {
    say(str(value?.text), str(value?.tone), str(value?.field));
    document.dispatchEvent(new CustomEvent("ckv-tokens", { detail: Number(value?.tokens) || 0 }));
  });
}
