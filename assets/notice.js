// One sentence to the reader: plain, a warning or an error.

const line = make("p", { class: "ckv-notice", hidden: true });
root.append(line);
onValue((value) => {
  const text = str(value?.text);
  line.hidden = text === "";
  line.dataset.tone = str(value?.tone);
  line.setAttribute("role", value?.tone === "error" ? "alert" : "status");
  setText(line, text);
});
