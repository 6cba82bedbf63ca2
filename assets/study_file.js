// Reads a file of samples in the browser into the field #study-data, so that no upload exists.

const MAX_CHARS = 8_000_000;
const picker = make("input", { type: "file", accept: ".jsonl,.json,.csv,.txt", class: "ckv-offscreen", tabindex: "-1", "aria-hidden": "true" });
const open = make("button", { type: "button", class: "ckv-button", text: "Open a JSONL or CSV file", onclick: () => picker.click() });
const told = make("span", { class: "ckv-context-told", role: "status" });
root.append(make("div", { class: "ckv-context-bar" }, open, picker, told));

function say(text, tone) {
  told.dataset.tone = tone;
  setText(told, text);
}

picker.addEventListener("change", async () => {
  const file = picker.files[0];
  picker.value = "";
  if (!file) return;
  try {
    const text = await textOf(file, 4 * MAX_CHARS, `${whole(MAX_CHARS)} characters`);
    if (text.length > MAX_CHARS) throw new Error(`${file.name} has ${whole(text.length)} characters; the limit is ${whole(MAX_CHARS)} here. Take python -m ckv_core study.`);
    const box = document.querySelector("#study-data textarea");
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    box.dispatchEvent(new Event("blur"));
    say(`${file.name}, ${whole(text.length)} characters`, "");
  } catch (error) {
    say(error.message, "error");
  }
});
