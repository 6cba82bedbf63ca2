// Files that go to the app or come from it: one of this computer sent, chosen runs as a bundle.

import { make, saveFile, str } from "../../../assets/scripts/dom.js";
import { answerOf, fileOpener, sent } from "../text_files/text_file.js";

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
      return `Exported ${slugs.length} ${slugs.length === 1 ? "run" : "runs"} with prompts and notes as ${name}.`;
    });
  open[0].title = "A bundle (zip) or a result file (JSON)";
  const started = make("a.ckv-button.ckv-primary", { href: "/", text: "New run" });
  return { take, node: make("div.ckv-row.ckv-files", message, open, started) };
}
