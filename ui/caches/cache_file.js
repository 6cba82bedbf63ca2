// A kept cache from a file of this computer.

import { make, onValue, setText, whole } from "../../assets/scripts/dom.js";
import { answerOf } from "../components/run_list/run_files.js";

const MIB = 2 ** 20;

export default function mount(host) {
  const { root, trigger } = host;
  let most = Infinity;
  const told = make("p.ckv-notice", { role: "status" });
  const say = (text, tone = "") => {
    told.dataset.tone = tone;
    setText(told, text);
  };
  const picker = make("input.ckv-offscreen", { type: "file", accept: ".safetensors", tabindex: "-1", "aria-hidden": "true" });
  const button = make("button.ckv-button", { text: "Import a cache", onclick: () => picker.click() });
  root.append(
    make(
      "div.ckv-told.ckv-files",
      button,
      picker,
      make("span.ckv-hint", "a safetensors file that this app or its command line wrote"),
      told,
    ),
  );

  async function send(file) {
    if (file.size > most * MIB) {
      throw new Error(
        `${file.name} has ${whole(file.size / MIB)} MiB; this page takes ${whole(most)} MiB. Where the app runs, use: python -m ckv_core cache import FILE NAME.`,
      );
    }
    const name = file.name.replace(/\.safetensors$/i, "");
    say(`Importing ${file.name}…`);
    await answerOf(`/caches/import?name=${encodeURIComponent(name)}`, {
      method: "POST",
      body: await file.arrayBuffer(),
      headers: { "Content-Type": "application/octet-stream" },
    });
    say(`${name} is kept.`);
    trigger("imported");
  }

  picker.addEventListener("change", async () => {
    const file = picker.files[0];
    picker.value = "";
    if (!file) return;
    button.disabled = true;
    try {
      await send(file);
    } catch (error) {
      say(error.message, "error");
    }
    button.disabled = false;
  });

  onValue(host, (value) => {
    most = Number(value?.import_mib) || Infinity;
  });
}
