// Saves the chart above as PNG or SVG, and its data as CSV.

const bar = make("div", { class: "ckv-plot-files", role: "group" });
const told = make("span", { class: "ckv-hint", role: "status" });
root.append(bar);

const plot = () => document.querySelector(`#${CSS.escape(str(props.value?.plot))} .js-plotly-plot`);

function give(url, kind) {
  make("a", { href: url, download: `${str(props.value?.plot)}.${kind}` }).click();
}

/** On a ground of the page's colour: the chart itself is transparent. */
async function saveImage(format) {
  const chart = plot();
  setText(told, chart ? "" : "There is no chart yet.");
  if (!chart) return;
  const width = Math.max(700, chart.clientWidth);
  const height = chart.layout.height || chart.clientHeight;
  const ground = getComputedStyle(document.body).backgroundColor;
  const layout = { ...chart.layout, paper_bgcolor: ground, autosize: false, width };
  const options = { format, width, height, scale: format === "png" ? 2 : 1 };
  give(await window.Plotly.toImage({ data: chart.data, layout }, options), format);
}

/** One line per point: series, x, y and its error, or x, y, z of a grid. */
function rowsOf(trace) {
  const name = str(trace.name);
  if (trace.type === "heatmap") {
    return Array.from(trace.z).flatMap((row, y) => Array.from(row, (z, x) => [name, x, y, z]));
  }
  const error = trace.error_x?.visible ? trace.error_x : null;
  return Array.from(trace.x, (x, at) => {
    const ends = error ? [x - error.arrayminus[at], x + error.array[at]] : [];
    return [name, x, trace.y[at], ...ends];
  });
}

function csvField(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = str(value);
  return `"${(/^\s*[=+@\t\r\n-]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}

function saveCsv() {
  const chart = plot();
  setText(told, chart ? "" : "There is no chart yet.");
  if (!chart) return;
  const traces = chart._fullData;
  const labels = chart._fullLayout.yaxis.ticktext;
  const head = ["series", "x", "y"];
  if (traces.some((trace) => trace.type === "heatmap")) head.push("z");
  if (traces.some((trace) => trace.error_x?.visible)) head.push("low", "high");
  const named = (row) => (labels && row.length !== 4 ? [row[0], row[1], str(labels[row[2]]).replace("<br>", " "), ...row.slice(3)] : row);
  const lines = [head, ...traces.flatMap(rowsOf).map(named)];
  const text = `${lines.map((line) => line.map(csvField).join(",")).join("\r\n")}\r\n`;
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  give(url, "csv");
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

onValue((value) => {
  const title = str(value?.title);
  bar.setAttribute("aria-label", `Files of ${title}`);
  bar.replaceChildren(...["PNG", "SVG", "CSV"].map((kind) => make("button", {
    type: "button", class: "ckv-button ckv-quiet", text: kind, "aria-label": `${title} as ${kind}`,
    onclick: () => (kind === "CSV" ? saveCsv() : saveImage(kind.toLowerCase())),
  })), told);
});
