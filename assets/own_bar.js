// Reads files of kept positions in the browser and adds them to the field #own, one a line.

const MAX_BYTES = 64 * 2 ** 20;
const MAX_CHARS = 16_000_000;

const picker = make("input", { type: "file", multiple: true, class: "ckv-offscreen", tabindex: "-1", "aria-hidden": "true" });
const open = make("button", { type: "button", class: "ckv-button", text: "Open files of kept positions" });
const remove = make("button", { type: "button", class: "ckv-button", text: "Remove own variants" });
const told = make("span", { class: "ckv-context-told", role: "status" });
root.append(make("div", { class: "ckv-context-bar" }, open, remove, picker, told));

const area = () => document.querySelector("#own textarea");

function say(text, tone = "") {
  told.dataset.tone = tone;
  setText(told, text);
}

function put(text) {
  const box = area();
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.dispatchEvent(new Event("blur")); // the server then names the variants, or what is wrong
}

const only = (value, ...names) => Object.fromEntries(names.map((name) => [name, value?.[name] ?? null]));

/** Without what a result JSON holds besides; the server checks what is left. */
function reduced(data) {
  if (!Array.isArray(data?.variants)) return data;
  return {
    schema: data.schema,
    model: only(data.model, "sha256", "layers", "kv_heads"),
    prompt: only(data.prompt, "compressed_tokens", "token_ids"),
    variants: data.variants
      .filter((variant) => (variant?.retained ?? null) !== null)
      .map((variant) => only(variant, "label", "spec", "retained")),
  };
}

function lines(file, text) {
  try {
    return JSON.stringify(reduced(JSON.parse(text)));
  } catch {
    throw new Error(`${file.name} is not valid JSON; write it as docs/external_selection.md shows.`);
  }
}

async function add(files) {
  const kept = area().value.split("\n").filter((line) => line.trim() !== "");
  for (const file of files) kept.push(lines(file, await textOf(file, MAX_BYTES, "64 MB")));
  const text = kept.join("\n");
  if (text.length > MAX_CHARS) {
    throw new Error(`These positions have ${whole(text.length)} characters; the form takes ${whole(MAX_CHARS)}. Use the command line.`);
  }
  put(text);
  say(`${files.map((file) => file.name).join(", ")} added`);
}

open.addEventListener("click", () => picker.click());
remove.addEventListener("click", () => {
  put("");
  say("Removed");
});
picker.addEventListener("change", async () => {
  const files = [...picker.files];
  picker.value = "";
  try {
    if (files.length) await add(files);
  } catch (error) {
    say(error.message, "error");
  }
});

onValue(() => {});
