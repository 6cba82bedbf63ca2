// What defines a run: a list of terms and their text.

const terms = make("dl", { class: "ckv-facts" });
root.append(terms);
onValue((value) => {
  terms.replaceChildren(...list(value?.rows).flatMap((row) => [
    make("dt", { text: str(row.label) }),
    make("dd", { dir: "auto", text: str(row.text) }),
  ]));
});
