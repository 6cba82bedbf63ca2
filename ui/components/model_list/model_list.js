// Models to choose from: size, context, and whether they fit this machine at the prompt's length.

import { list, make, onValue, scroller, setText, str, tableHead, whole } from "../../../assets/scripts/dom.js";

const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
const millions = (count) => (count < 1e9 ? `${Math.round(count / 1e6)} M` : `${(count / 1e9).toFixed(1)} B`);

export default function mount(host) {
  const { root, trigger } = host;
  const note = make("p.ckv-hint");
  const rows = make("tbody");
  const head = tableHead("Model", "Memory, at least");
  const table = scroller("Suggested models", make("table.ckv-table.ckv-tight", head, rows));
  root.append(make("details.ckv-models", make("summary", "Suggested models"), note, table));

  let tokens = 0;
  let shown = null;

  /** A sign and a word: weights and the prompt's cache against the machine's memory. */
  function fit(row, memory) {
    const least = row.weights + tokens * row.token;
    if (tokens > row.context) return [least, "warn", "prompt too long"];
    if (least > memory) return [least, "warn", "does not fit"];
    return least > 0.6 * memory ? [least, "", "tight"] : [least, "good", "fits"];
  }

  function line(row, memory) {
    const [least, tone, words] = fit(row, memory);
    const sign = { warn: "⚠ ", good: "✓ " }[tone] ?? "";
    return make("tr", { "data-fit": words }, [
      make("th", { scope: "row" }, [
        make("button.ckv-link.ckv-choose", {
          text: str(row.name),
          "aria-label": `Choose ${str(row.name)}`,
          onclick: () => trigger("pick", { name: row.name }),
        }),
        make(
          "span.ckv-hint.ckv-num",
          `${millions(row.parameters)} parameters, context of ${whole(row.context)} tokens, ${str(row.license)}${row.ready ? "" : `, download of about ${gigabytes(row.weights / 2)}`}`,
        ),
      ]),
      make("td", { class: `ckv-num ${tone ? `ckv-${tone}` : ""}`, text: `${gigabytes(least)} ${sign}${words}` }),
    ]);
  }

  function draw() {
    if (!shown) return;
    setText(
      note,
      `Weights and the full cache of ${tokens ? `this prompt's ${whole(tokens)} tokens` : "an empty prompt"} in float32, as on a CPU; this machine has ${gigabytes(shown.memory)}. Each variant takes some more; a run that does not fit is refused before it starts.`,
    );
    rows.replaceChildren(...list(shown.rows).map((row) => line(row, shown.memory)));
  }

  document.addEventListener("ckv-tokens", (/** @type {CustomEvent} */ event) => {
    tokens = event.detail;
    draw();
  });
  onValue(host, (value) => {
    shown = value;
    draw();
  });
}
