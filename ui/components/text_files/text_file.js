// Files of this computer: what our routes answer to them, a button and its line, the field for their text.
// Text files are read here; a PDF or DOCX is sent to the server, which has the library for it.

import { button, make, setText, str, whole } from "../../../assets/scripts/dom.js";

const MIB = 2 ** 20;

/** The answer of one of our routes; throws an Error whose message is the sentence to show. */
export async function answerOf(url, options = undefined) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Error("The app did not answer; see whether it runs, and try again.");
  }
  if (answer.ok) return answer;
  const known = await answer.json().catch(() => null);
  throw new Error(str(known?.message ?? known?.error) || `The app refused this (status ${answer.status}); reload the page and try again.`);
}

/** The answer of a route that takes a file of up to `most` MiB; `advice` is what to do with a larger one. */
export async function sent(url, file, most, advice) {
  if (file.size > most * MIB) {
    throw new Error(`${file.name} has ${whole(file.size / MIB)} MiB; this app takes ${whole(most)} MiB at a time. ${advice}`);
  }
  const headers = { "Content-Type": "application/octet-stream" };
  return answerOf(url, { method: "POST", body: await file.arrayBuffer(), headers });
}

const DOCUMENT_MIB = 32;

/** A field by the id of its block.
 * @returns {HTMLTextAreaElement} */
export const area = (id) => document.querySelector(`#${id} textarea`);

/** Put a text into a field as if it had been typed and left, which the server hears of. */
export function put(box, text) {
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

/** Text of a file, and what could not be read of it: of a document the server says both. */
async function readFile(file, most) {
  if (!/\.(pdf|docx)$/i.test(file.name)) return { text: await textOf(file, 4 * most, `${whole(most)} characters`), note: "" };
  const url = `/documents/text?name=${encodeURIComponent(file.name)}`;
  return (await sent(url, file, DOCUMENT_MIB, "Open a smaller one.")).json();
}

/** Fill a field with one file of up to `most` characters and say so; `advice` is what to do with a longer one. */
export async function fill(box, file, most, advice) {
  const { text, note } = await readFile(file, most);
  if (text.length > most) throw new Error(`${file.name} has ${whole(text.length)} characters; the limit is ${whole(most)}${advice}`);
  put(box, text);
  return `${file.name}, ${whole(text.length)} characters. ${note}`.trim();
}

/** Take a file that is dropped on a part of the page; a drop elsewhere stays the browser's. */
export function onDrop(selector, take) {
  const zone = ({ target, dataTransfer }) => (dataTransfer?.types.includes("Files") ? target.closest?.(selector) : null);
  const mark = (event, isOver) => zone(event)?.classList.toggle("ckv-dropping", isOver);
  document.addEventListener("dragover", (event) => {
    if (!zone(event)) return;
    event.preventDefault();
    mark(event, true);
  });
  document.addEventListener("dragleave", (event) => mark(event, false));
  document.addEventListener("drop", (event) => {
    if (!zone(event)) return;
    event.preventDefault();
    mark(event, false);
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
}
