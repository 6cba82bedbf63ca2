// Runs as files: import one from this computer, export chosen ones as a bundle.

import { make, saveFile, setText, str, whole } from "../../../assets/scripts/dom.js";

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
  throw new Error(str(known?.told ?? known?.error) || `The app refused this (status ${answer.status}); reload the page and try again.`);
}

/** A button and its own line; `imported` is called once runs are stored. */
export class RunFiles {
  constructor(imported) {
    this.most = Infinity;
    this.told = make("p.ckv-notice", { role: "status" });
    const picker = make("input.ckv-offscreen", {
      type: "file",
      accept: ".zip,.json,.jsonl",
      tabindex: "-1",
      "aria-hidden": "true",
      "data-import": true,
    });
    this.button = make("button.ckv-button", { text: "Import runs", onclick: () => picker.click() });
    picker.addEventListener("change", async () => {
      const file = picker.files[0];
      if (file) await this.busy(`Importing ${file.name}…`, () => this.read(file, imported));
      picker.value = "";
    });
    this.node = make("div.ckv-told.ckv-files", [
      this.button,
      picker,
      make("span.ckv-hint", "a bundle (zip) or a result file (JSON)"),
      this.told,
    ]);
  }

  say(text, tone = "") {
    this.told.dataset.tone = tone;
    setText(this.told, text);
  }

  async busy(text, work) {
    this.button.disabled = true;
    this.say(text);
    try {
      await work();
    } catch (error) {
      this.say(error.message, "error");
    }
    this.button.disabled = false;
  }

  async read(file, imported) {
    if (file.size > this.most * MIB) {
      throw new Error(
        `${file.name} has ${whole(file.size / MIB)} MiB; this app takes ${whole(this.most)} MiB at a time. Export fewer runs into a bundle.`,
      );
    }
    const answer = await answerOf("/runs/import", {
      method: "POST",
      body: await file.arrayBuffer(),
      headers: { "Content-Type": "application/octet-stream" },
    });
    this.say(str((await answer.json()).told));
    imported();
  }

  /** Gives the reader one bundle of these runs. */
  async take(slugs) {
    await this.busy("Exporting…", async () => {
      const answer = await answerOf(`/runs/export?ids=${slugs.map(encodeURIComponent).join(",")}`);
      const name = /filename="([\w.-]+)"/.exec(answer.headers.get("content-disposition") ?? "")?.[1] ?? "ckv-runs.zip";
      saveFile(await answer.blob(), name);
      this.say(`Exported ${slugs.length} ${slugs.length === 1 ? "run" : "runs"} with prompts, notes and tags as ${name}.`);
    });
  }
}
