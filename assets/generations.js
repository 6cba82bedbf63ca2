// What every variant generates, side by side.

const empty = make("p", { class: "ckv-empty", text: "Generated text appears here, one card per variant." });
const answerLine = make("p", { class: "ckv-answer" });
const grid = new CardGrid();
root.append(empty, answerLine, grid.node);

onValue((value) => {
  const wanted = list(value?.cards);
  empty.hidden = wanted.length > 0;
  answerLine.hidden = !value?.answer || wanted.length === 0;
  setText(answerLine, value?.answer ? `Reference answer: ${str(value.answer)}` : "");
  grid.draw(wanted);
});
