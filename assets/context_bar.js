// Reads a text file in the browser and asks for a token count once typing rests.

const MAX_CHARS = 4_000_000;
const BIG_CHARS = 200_000;
const REST_MS = 600;
const BIG_REST_MS = 2500;

const picker = make("input", { type: "file", class: "ckv-offscreen", tabindex: "-1", "aria-hidden": "true" });
const open = make("button", { type: "button", class: "ckv-button", text: "Open a text file" });
const told = make("span", { class: "ckv-context-told", role: "status" });
const counted = make("span", { class: "ckv-context-count ckv-num", role: "status" });
root.append(make("div", { class: "ckv-context-bar" }, open, picker, told, counted));

const area = () => document.querySelector("#context textarea");
let timer = null;

function ask(text) {
  clearTimeout(timer);
  const rest = text.length > BIG_CHARS ? BIG_REST_MS : REST_MS;
  counted.dataset.tone = "";
  setText(counted, text.trim() === "" ? "" : "counting…");
  timer = setTimeout(() => { if (root.isConnected) trigger("count"); }, rest);
}

function say(text, tone) {
  told.dataset.tone = tone;
  setText(told, text);
}

function put(text) {
  const box = area();
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

async function read(file) {
  let text;
  try {
    text = await textOf(file, 4 * MAX_CHARS, `${whole(MAX_CHARS)} characters`);
  } catch (error) {
    return say(error.message, "error");
  }
  if (text.length > MAX_CHARS) {
    return say(`${file.name} has ${whole(text.length)} characters; the limit is ${whole(MAX_CHARS)}. Shorten it.`, "error");
  }
  put(text);
  return say(`${file.name}, ${whole(text.length)} characters`, "");
}

open.addEventListener("click", () => picker.click());
picker.addEventListener("change", async () => {
  const file = picker.files[0];
  if (file) await read(file);
  picker.value = "";
});

function onInput(event) {
  if (!root.isConnected) document.removeEventListener("input", onInput);
  else if (event.target.closest("#context, #question")) ask(area().value);
}
document.addEventListener("input", onInput);

onValue((value) => {
  counted.dataset.tone = str(value?.tone);
  setText(counted, str(value?.text));
  document.dispatchEvent(new CustomEvent("ckv-tokens", { detail: Number(value?.tokens) || 0 }));
});
