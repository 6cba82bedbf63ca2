// Reads a file of samples in the browser into the field #study-data.

import { make } from "../../../assets/scripts/dom.js";
import { area, fileOpener, fill } from "./text_file.js";

const MAX_CHARS = 8_000_000;
const ADVICE = " here. Take ckv run.";

export default function mount({ root }) {
  const take = ([file]) => fill(area("study-data"), file, MAX_CHARS, ADVICE);
  const { open, message } = fileOpener("Open a JSONL or CSV file", take, { accept: ".jsonl,.json,.csv,.txt" });
  root.append(make("div.ckv-row", open, message));
}
