// Charts of a run: choices and downloads around each; fetched and drawn once they are near.

import {
  exportMenu,
  fetchOk,
  list,
  make,
  nearView,
  onTheme,
  onValue,
  regimesHead,
  saveFile,
  select,
  setText,
  showText,
  str,
} from "../../../assets/scripts/dom.js";
import { divergingStops, isDark } from "../../../assets/scripts/marks.js";
import { chartTable, plain } from "./chart_table.js";

const TOP = 12; // pixels above a plot
const NARROW = 520; // pixels; in a wider plot lines are named at their ends
const END_NAMES = 190; // pixels for these names

/** plotly.js, once per page. */
function loadPlotly() {
  globalThis.ckvPlotly ??= new Promise((resolve, reject) => {
    const script = make("script", { src: "/plotly.js" });
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      globalThis.ckvPlotly = undefined;
      reject(new Error("the chart library did not come"));
    };
    document.head.append(script);
  });
  return globalThis.ckvPlotly;
}

/** The figure in the page's theme: colours have twins in the dark; what diverges has the page's ground in its middle. */
function themed(shown) {
  const twins = isDark() ? shown.layout.meta : {};
  const figure = JSON.parse(JSON.stringify(shown).replace(/#[0-9a-f]{6}/g, (color) => twins[color] ?? color));
  const stops = divergingStops();
  const scale = stops.map((color, at) => [at / (stops.length - 1), color]);
  const data = list(figure.data).map((trace) => {
    if (trace.meta === "diverging") return { ...trace, colorscale: scale };
    if (trace.meta !== "sign" || !isDark()) return trace;
    const { line } = trace.marker;
    const [[, one], [, two]] = line.colorscale;
    const colorscale = [
      [0, two],
      [1, one],
    ];
    return { ...trace, marker: { ...trace.marker, line: { ...line, colorscale } } };
  });
  return { ...figure, data };
}

/** Lines named at their ends, or in a legend where the plot is narrow. */
function named(layout, width) {
  if (!layout.meta?.ends) return layout;
  const isNarrow = width < NARROW;
  const annotations = list(layout.annotations).filter(({ name }) => !isNarrow || name !== "end");
  const margin = isNarrow ? layout.margin : { ...layout.margin, r: END_NAMES };
  const height = isNarrow ? layout.height : layout.meta.height;
  return { ...layout, annotations, margin, height, showlegend: isNarrow };
}

const isReport = () => document.querySelector(".ckv-report") !== null;

/** A page of ours that a point leads to; in a report there is none. */
function addressOf(point) {
  const address = str(list(point).at(-1));
  return address.startsWith("/run?") && !isReport() ? address : "";
}

function follow({ points: [point] }) {
  const address = addressOf(point?.customdata);
  if (address) location.assign(address);
}

/** One chart with its choices and files. */
class Panel {
  constructor(chart) {
    this.name = chart.name;
    this.shape = "";
    this.drawn = "";
    this.seen = false;
    this.selects = [];
    this.controls = make("div.ckv-row");
    this.title = make("p.ckv-chart-title");
    this.subtitle = make("p.ckv-hint");
    this.plot = make("div.ckv-plot", { role: "img" });
    this.notice = make("p.ckv-hint", { role: "status" });
    this.table = make("div.ckv-chart-table", { hidden: true });
    this.csv = make("a.ckv-button.ckv-quiet", { download: true, text: "CSV" });
    this.files = exportMenu(str(chart.title), [
      ["PNG", () => this.download("png")],
      ["SVG", () => this.download("svg")],
      this.csv,
      ["As a table", () => this.showTable(this.table.hidden)],
    ]);
    this.files.hidden = true;
    this.node = make("section.ckv-panel.ckv-chart", { "data-chart": chart.name }, [
      this.controls,
      make("div.ckv-chart-head", make("div", this.title, this.subtitle), this.files),
      this.plot,
      this.table,
      this.notice,
    ]);
    this.sight = nearView((seen) => {
      this.seen = seen;
      if (seen) this.draw();
      else delete this.node.dataset.wanted;
    });
    this.sight.observe(this.node);
  }

  /** Take the chart's description; choices that still exist stay. */
  update(chart, run) {
    this.run = run;
    const base = `${run.base}/${encodeURIComponent(run.slug)}`;
    this.address = `${base}/figure/${encodeURIComponent(this.name)}`;
    this.csv.href = `${base}/${encodeURIComponent(chart.csv)}.csv`;
    this.csv.hidden = !chart.csv;
    const title = str(chart.title);
    this.node.setAttribute("aria-label", title);
    if (!this.figure) this.plot.setAttribute("aria-label", title);
    const shape = JSON.stringify(chart.controls);
    if (shape !== this.shape) this.build(list(chart.controls));
    this.shape = shape;
    if (this.seen) this.draw();
  }

  build(controls) {
    const before = Object.fromEntries(this.selects.map((node) => [node.name, node.value]));
    this.selects = controls.map(({ name, options }) => select(list(options), before[name], () => this.draw(), { name }));
    const shown = this.selects.map((node, at) => [str(controls[at].label), node]).filter(([, node]) => node.options.length > 1);
    this.controls.replaceChildren(...shown.map(([label, node]) => make("label.ckv-field", make("span", label), node)));
  }

  /** A preview brings its figures along, those that live.js found named in `data-wanted`. */
  async draw() {
    const query = new URLSearchParams(this.selects.map((node) => [node.name, node.value]));
    const wanted = `${this.name}?${query}`;
    this.node.dataset.wanted = wanted;
    query.set("v", this.run.key);
    const address = `${this.address}?${query}`;
    const { figures } = this.run;
    if (figures && !(wanted in figures)) {
      this.node.dispatchEvent(new Event("ckv-wanted", { bubbles: true }));
      return;
    }
    const source = figures ? figures[wanted] : address;
    if (source === this.drawn) return;
    this.drawn = source;
    try {
      const read = figures ? JSON.parse(source) : fetchOk(address).then((answer) => answer.json());
      const [plotly, figure] = await Promise.all([loadPlotly(), read]);
      if (source !== this.drawn) return;
      this.figure = figure;
      await this.paint(plotly);
      this.files.hidden = list(figure.data).length === 0;
      this.showTable(!this.table.hidden && !this.files.hidden);
      this.node.dataset.drawn = figures ? `preview:${wanted}` : address;
      setText(this.notice, "");
    } catch (error) {
      this.drawn = "";
      setText(this.notice, `This chart could not be drawn: ${error.message}. Scroll away and back to try again.`);
    }
  }

  /** The title stands above the plot, where it takes as many lines as it needs. */
  async paint(plotly) {
    const { data, layout } = themed(this.figure);
    const { title, margin, height } = named(layout, this.plot.clientWidth);
    const [words, more] = [title?.text, title?.subtitle?.text].map(plain);
    setText(this.title, words);
    showText(this.subtitle, more);
    this.plot.setAttribute("aria-label", [words, more].filter(Boolean).join(". "));
    const bare = {
      ...named(layout, this.plot.clientWidth),
      title: undefined,
      margin: { ...margin, t: TOP },
      height: height - margin.t + TOP,
    };
    this.plot.style.minHeight = `${bare.height}px`;
    await plotly.react(this.plot, data, bare, { responsive: true, displayModeBar: false });
    if (!this.followed) this.plot.on("plotly_click", follow);
    this.followed = true;
  }

  /** In the page's colours: the chart itself is grey and transparent. A file has no web font. */
  async download(format) {
    const { data, layout } = themed(this.figure);
    const { backgroundColor: ground, color } = getComputedStyle(this.node);
    const width = Math.max(700, this.plot.clientWidth);
    const plotly = await loadPlotly();
    const font = { ...layout.font, color, family: "system-ui, sans-serif" };
    const image = { data, layout: { ...named(layout, width), font, paper_bgcolor: ground, autosize: false, width } };
    const size = { format, width, height: layout.height, scale: format === "png" ? 2 : 1 };
    saveFile(await plotly.toImage(image, size), `ckv-${this.run.file ?? this.run.slug}-${this.name}.${format}`);
  }

  /** The chart in words below it, or not. */
  showTable(isShown) {
    this.table.hidden = !isShown;
    if (isShown) this.table.replaceChildren(chartTable(this.figure, this.title.textContent, addressOf) ?? "");
  }

  close() {
    this.sight.disconnect();
    if (this.figure) globalThis.Plotly.purge(this.plot);
    this.node.remove();
  }
}

export default function mount(host) {
  const { root, element } = host;
  const empty = make("p.ckv-empty");
  const head = regimesHead();
  const grid = make("div.ckv-grid");
  root.append(empty, head, grid);
  const panels = new Map();

  onValue(host, (value) => {
    root.hidden = value === null;
    const charts = list(value?.charts);
    const isEmpty = charts.length === 0;
    setText(empty, str(value?.text));
    empty.hidden = !isEmpty;
    showText(head, !isEmpty && value.head);
    grid.hidden = isEmpty;
    const names = new Set(charts.map((chart) => chart.name));
    for (const [name, panel] of panels) {
      if (names.has(name)) continue;
      panel.close();
      panels.delete(name);
    }
    charts.forEach((chart, at) => {
      if (!panels.has(chart.name)) panels.set(chart.name, new Panel(chart));
      const panel = panels.get(chart.name);
      if (grid.children[at] !== panel.node) grid.insertBefore(panel.node, grid.children[at] ?? null);
      panel.update(chart, value);
    });
  });

  onTheme(element, () => {
    for (const panel of panels.values()) if (panel.figure) loadPlotly().then((plotly) => panel.paint(plotly));
  });
}
