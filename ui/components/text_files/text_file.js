// Files of this computer: a button and its line; of text files, which no server sees, the field they go to.

import { button, make, setText, whole } from "../../../assets/scripts/dom.js";

/** A field by the id of its block.
 * @returns {HTMLTextAreaElement} */
export const area = (id) => document.querySelector(`#${id} textarea`);

/** Put a text into a field as if it had been typed and left, which the server hears of. */
function put(box, text) {
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.dispatchEvent(new Event("blur"));
}

/** A button that opens files, and the line that says what `take` made of them, or the error that it threw.
 * `busy` does any other work so, with the button at rest meanwhile. */
export function fileOpener(words, take, attributes = {}) {
  const message = make("span.ckv-notice", { role: "status" });
  const say = (text, tone = "") => {
    message.dataset.tone = tone;
    setText(message, text);
  };
  const picker = make("input.ckv-offscreen", { type: "file", tabindex: "-1", "aria-hidden": "true", ...attributes });
  const opener = button(words, () => picker.click());
  async function busy(work) {
    opener.disabled = true;
    try {
      say(await work());
    } catch (error) {
      say(error.message, "error");
    }
    opener.disabled = false;
  }
  picker.addEventListener("change", () => {
    const files = [...picker.files];
    picker.value = "";
    if (files.length) busy(() => take(files));
  });
  return { say, busy, message, open: [opener, picker] };
}

/** Text of a file; throws an Error whose message is the sentence to show. `limit` is `mostBytes` in words. */
async function textOf(file, mostBytes, limit) {
  if (file.size > mostBytes) {
    throw new Error(`${file.name} has ${whole(file.size / 1e6)} MB; choose one of up to ${limit}.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not UTF-8 text; save it as UTF-8 and open it again.`);
  }
  if (text.includes("\u0000")) throw new Error(`${file.name} is not a text file; choose one that is.`);
  return text;
}

/** Fill a field with one file of up to `most` characters and say so; `advice` is what to do with a longer one. */
export async function fill(box, file, most, advice) {
  const text = await textOf(file, 4 * most, `${whole(most)} characters`);
  if (text.length > most) throw new Error(`${file.name} has ${whole(text.length)} characters; the limit is ${whole(most)}${advice}`);
  put(box, text);
  return `${file.name}, ${whole(text.length)} characters`;
}
