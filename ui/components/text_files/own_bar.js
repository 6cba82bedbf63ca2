// Reads files of kept positions in the browser and adds them to the field #own, one a line.

import { make, onValue, whole } from "../../../assets/scripts/dom.js";
import { area, fileOpener, put, textOf } from "./text_file.js";

const MAX_BYTES = 64 * 2 ** 20;
const MAX_CHARS = 16_000_000;

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

export default function mount(host) {
  async function add(files) {
    const kept = area("own")
      .value.split("\n")
      .filter((line) => line.trim() !== "");
    for (const file of files) kept.push(lines(file, await textOf(file, MAX_BYTES, "64 MB")));
    const text = kept.join("\n");
    if (text.length > MAX_CHARS) {
      throw new Error(`These positions have ${whole(text.length)} characters; the form takes ${whole(MAX_CHARS)}. Use the command line.`);
    }
    put(area("own"), text);
    return `${files.map((file) => file.name).join(", ")} added`;
  }

  const { open, told, say } = fileOpener("Open files of kept positions", add, { multiple: true });
  const remove = make("button.ckv-button", "Remove own variants");
  remove.addEventListener("click", () => {
    put(area("own"), "");
    say("Removed");
  });
  host.root.append(make("div.ckv-context-bar", open, remove, told));
  onValue(host, () => {});
}
