// A kept cache from a file of this computer.

import { make, onValue } from "../../assets/scripts/dom.js";
import { fileOpener, sent } from "../components/text_files/text_file.js";

const ADVICE = "Where the app runs, use: python -m ckv_core cache import FILE NAME.";

export default function mount(host) {
  const { root, trigger } = host;
  let most = Infinity;

  async function take([file]) {
    const name = file.name.replace(/\.safetensors$/i, "");
    say(`Importing ${file.name}…`);
    await sent(`/caches/import?name=${encodeURIComponent(name)}`, file, most, ADVICE);
    trigger("imported");
    return `${name} is kept.`;
  }

  const { say, message, open } = fileOpener("Import a cache", take, { accept: ".safetensors" });
  const hint = make("span.ckv-hint", "a safetensors file that this app or its command line wrote");
  root.append(make("div.ckv-row.ckv-files", open, hint, message));
  onValue(host, (value) => {
    most = Number(value?.import_mib) || Infinity;
  });
}
