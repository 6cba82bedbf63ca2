// Files that go to the app or come from it: one of this computer sent, chosen runs as a bundle.

import { make, saveFile, str, whole } from "../../../assets/scripts/dom.js";
import { fileOpener } from "../text_files/text_file.js";

const MIB = 2 ** 20;
/** The answer of one of our routes; throws an Error whose message is the sentence to show. */
async function answerOf(url, options = undefined) {
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

/** A button with its line; `imported` is called once runs are stored, `most` gives the MiB that the app takes. */
export function runFiles(imported, most) {
  async function read([file]) {
    say(`Importing ${file.name}…`);
    const answer = await sent("/runs/import", file, most(), "Export fewer runs into a bundle.");
    imported();
    return str((await answer.json()).message);
  }

  const attributes = { accept: ".zip,.json,.jsonl", "data-import": true };
  const { say, busy, message, open } = fileOpener("Import", read, attributes);

  /** Gives the reader one bundle of these runs. */
  const take = (slugs) =>
    busy(async () => {
      say("Exporting…");
      const answer = await answerOf(`/runs/export?ids=${slugs.map(encodeURIComponent).join(",")}`);
      const name = /filename="([\w.-]+)"/.exec(answer.headers.get("content-disposition") ?? "")?.[1] ?? "ckv-runs.zip";
      saveFile(await answer.blob(), name);
      return `Exported ${slugs.length} ${slugs.length === 1 ? "run" : "runs"} with prompts, notes and tags as ${name}.`;
    });
  open[0].title = "A bundle (zip) or a result file (JSON)";
  const started = make("a.ckv-button.ckv-primary", { href: "/", text: "New run" });
  return { take, node: make("div.ckv-row", message, open, started) };
}
