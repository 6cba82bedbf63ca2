// One sentence to the reader, plain, a warning or an error, and links to where to go on.

const line = make("p", { class: "ckv-notice", hidden: true });
root.append(line);
onValue((value) => {
  const text = str(value?.text);
  line.hidden = text === "";
  line.dataset.tone = str(value?.tone);
  line.setAttribute("role", value?.tone === "error" ? "alert" : "status");
  const links = list(value?.links).map(([words, href]) => make("a", { class: "ckv-link", text: str(words), href: str(href) }));
  if (links.length) line.replaceChildren(text, ...links.flatMap((link) => [" ", link]));
  else setText(line, text);
});
