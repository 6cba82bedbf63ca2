// Models to choose from: size, context, and whether they fit this machine at the prompt's length.

const note = make("p", { class: "ckv-hint" });
const rows = make("tbody");
const table = make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": "Suggested models" },
  make("table", { class: "ckv-table ckv-tight" },
    make("thead", {}, make("tr", {}, ...["Model", "Memory, at least"].map((text) => make("th", { scope: "col", text })))),
    rows));
root.append(make("details", { class: "ckv-models" }, make("summary", { text: "Suggested models" }), note, table));

const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
const millions = (count) => (count < 1e9 ? `${Math.round(count / 1e6)} M` : `${(count / 1e9).toFixed(1)} B`);
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
  return make("tr", { "data-fit": words },
    make("th", { scope: "row" },
      make("button", {
        type: "button", class: "ckv-link ckv-choose", text: str(row.name), "aria-label": `Choose ${str(row.name)}`,
        onclick: () => trigger("pick", { name: row.name }),
      }),
      make("span", { class: "ckv-hint ckv-num", text: `${millions(row.parameters)} parameters, context of ${whole(row.context)} tokens, ${str(row.license)}${row.ready ? "" : `, download of about ${gigabytes(row.weights / 2)}`}` })),
    make("td", { class: `ckv-num ${tone ? `ckv-${tone}` : ""}`, text: `${gigabytes(least)} ${sign}${words}` }));
}

function draw() {
  if (!shown) return;
  setText(note, `Weights and the full cache of ${tokens ? `this prompt's ${whole(tokens)} tokens` : "an empty prompt"} in float32, as on a CPU; this machine has ${gigabytes(shown.memory)}. Each variant takes some more; a run that does not fit is refused before it starts.`);
  rows.replaceChildren(...list(shown.rows).map((row) => line(row, shown.memory)));
}

document.addEventListener("ckv-tokens", (event) => {
  tokens = event.detail;
  draw();
});
onValue((value) => {
  shown = value;
  draw();
});
