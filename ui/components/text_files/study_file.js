// Reads a file of samples in the browser into the field #study-data: opened, or dropped there.

import { make } from "../../../assets/scripts/dom.js";
import { area, fileOpener, fill, onDrop } from "./text_file.js";

const MAX_CHARS = 8_000_000;
const ADVICE = " here. Run the file on the command line: ckv run.";

export default function mount({ root }) {
  const take = (files) => fill(area("study-data"), files[0], MAX_CHARS, ADVICE);
  const { open, message, busy } = fileOpener("Open or drop a file", take, {
    accept: ".jsonl,.json,.csv,.txt",
    title: "JSON Lines, CSV or LongBench",
  });
  root.append(make("div.ckv-row", open, message));
  onDrop("#study-file-area", (files) => busy(() => take(files)));
}
