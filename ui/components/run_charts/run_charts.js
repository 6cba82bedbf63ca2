// Charts of a run: choices and downloads around each; fetched and drawn once they are near.

import {
  list,
  make,
  nearView,
  onValue,
  regimesHead,
  saveFile,
  scroller,
  setRegimes,
  setText,
  str,
  tableHead,
  withTerms,
} from "../../../assets/scripts/dom.js";
import { divergingStops, isDark } from "../../../assets/scripts/marks.js";

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

/** The figure in the page's theme: what diverges has the page's ground in its middle. */
function themed(figure) {
  const stops = divergingStops();
  const scale = stops.map((color, at) => [at / (stops.length - 1), color]);
  const data = list(figure.data).map((trace) => {
    if (trace.meta === "diverging") return { ...trace, colorscale: scale };
    if (trace.meta !== "sign" || !isDark()) return trace;
    const { line } = trace.marker;
    const [[, one], [, two]] = line.colorscale;
    return {
      ...trace,
      marker: {
        ...trace.marker,
        line: {
          ...line,
          colorscale: [
            [0, two],
            [1, one],
          ],
        },
      },
    };
  });
  return { ...figure, data };
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

/** A heat map whose cells lead somewhere, for the keyboard and in words: (n, text, address) by row; null of other charts. */
function cellTable({ data, layout }) {
  const map = list(data).find((trace) => trace.type === "heatmap" && trace.customdata);
  if (!map) return null;
  const cell = (point) => {
    const [n, text] = list(point);
    const href = addressOf(point);
    return make("td.ckv-num.ckv-right", href ? make("a.ckv-link", { href, text }) : str(text), n ? ` (n = ${n})` : "–");
  };
  const rows = list(map.y).map((name, at) => make("tr", make("th", { scope: "row", text: name }), ...list(map.customdata[at]).map(cell)));
  const axes = [layout.yaxis, layout.xaxis].map((axis) => str(axis?.title?.text)).join(" / ");
  const table = make("table.ckv-table.ckv-tight", tableHead(axes, ...list(map.x)), make("tbody", rows));
  return [make("summary", "The cells as a table"), scroller("Cells of the map", table)];
}

export default function mount(host) {
  const { root, element } = host;
  const heading = make("h3.ckv-section-name");
  const words = make("p.ckv-subdued.ckv-section-text");
  const empty = make("p.ckv-empty");
  const head = regimesHead();
  const grid = make("div.ckv-charts");
  root.append(heading, words, empty, head, grid);
  const panels = new Map();

  /** The layout with its title in as many lines as the width needs; Plotly would cut it. */
  function withWholeTitle(layout, width) {
    const pen = document.createElement("canvas").getContext("2d");
    const broken = (words, size) => {
      pen.font = `${size}px ${layout.font.family}`;
      const lines = [];
      for (const word of str(words).split(" ")) {
        const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
        if (lines.length && pen.measureText(longer).width <= width * 0.94) lines[lines.length - 1] = longer;
        else lines.push(word);
      }
      return lines;
    };
    const { title, margin, height } = layout;
    const heads = broken(title?.text, title?.font?.size);
    const small = broken(title?.subtitle?.text, title?.subtitle?.font?.size);
    const more = (heads.length - 1) * 24 + (small.length - 1) * 16;
    if (more === 0) return { ...layout };
    const subtitle = { ...title.subtitle, text: small.join("<br>") };
    return {
      ...layout,
      height: height + more,
      margin: { ...margin, t: margin.t + more },
      title: { ...title, text: heads.join("<br>"), subtitle },
    };
  }

  class Panel {
    constructor(chart) {
      this.name = chart.name;
      this.shape = "";
      this.drawn = "";
      this.seen = false;
      this.controls = make("div.ckv-chart-controls");
      this.plot = make("div.ckv-plot", { role: "img" });
      this.notice = make("p.ckv-hint", { role: "status" });
      this.cells = make("details", { hidden: true });
      this.csv = make("a.ckv-link", { download: true, text: "CSV" });
      this.files = ["png", "svg"].map((format) =>
        make("button.ckv-button.ckv-quiet", { text: format.toUpperCase(), disabled: true, onclick: () => this.download(format) }),
      );
      this.node = make("section.ckv-panel.ckv-chart", { "data-chart": chart.name }, [
        this.controls,
        this.plot,
        this.cells,
        this.notice,
        make("div.ckv-chart-files", { role: "group" }, ...this.files, this.csv),
      ]);
      this.sight = nearView((seen) => {
        this.seen = seen;
        if (seen) this.draw();
      });
      this.sight.observe(this.node);
    }

    /** Take the chart's description; choices that still exist stay. */
    update(chart, run) {
      this.run = run;
      this.title = str(chart.title);
      this.csv.href = `${run.base}/${encodeURIComponent(run.slug)}/${encodeURIComponent(chart.csv)}.csv`;
      this.csv.hidden = !chart.csv;
      this.csv.setAttribute("aria-label", `Data of ${this.title} as CSV`);
      this.files.forEach((button) => button.setAttribute("aria-label", `${this.title} as ${button.textContent}`));
      this.node.setAttribute("aria-label", this.title);
      if (!this.figure) this.plot.setAttribute("aria-label", this.title);
      const shape = JSON.stringify(chart.controls);
      if (shape !== this.shape) {
        this.shape = shape;
        this.build(list(chart.controls));
      }
      if (this.seen) this.draw();
    }

    build(controls) {
      const before = Object.fromEntries((this.selects ?? []).map((node) => [node.name, node.value]));
      this.selects = controls.map((control) => {
        const node = make("select.ckv-select", { name: control.name, onchange: () => this.draw() });
        list(control.options).forEach(([value, label]) => node.append(make("option", { value: str(value), text: str(label) })));
        node.value = before[control.name] ?? node.value;
        if (node.selectedIndex < 0) node.selectedIndex = 0;
        return node;
      });
      this.controls.replaceChildren(
        ...this.selects.flatMap((node, at) => {
          if (node.options.length < 2) return [];
          return [make("label.ckv-chart-choice", make("span", str(controls[at].label)), node)];
        }),
      );
    }

    address() {
      const query = new URLSearchParams(this.selects.map((node) => [node.name, node.value]));
      query.set("v", this.run.key);
      return `${this.run.base}/${encodeURIComponent(this.run.slug)}/figure/${encodeURIComponent(this.name)}?${query}`;
    }

    async draw() {
      const address = this.address();
      if (address === this.drawn) return;
      this.drawn = address;
      try {
        const [plotly, answer] = await Promise.all([loadPlotly(), fetch(address)]);
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        const figure = await answer.json();
        if (address !== this.drawn) return;
        this.figure = figure;
        await this.paint(plotly);
        const cells = cellTable(figure);
        this.cells.hidden = cells === null;
        this.cells.replaceChildren(...list(cells));
        const { title } = figure.layout;
        this.plot.setAttribute("aria-label", [title?.text, title?.subtitle?.text].filter(Boolean).join(". "));
        this.node.dataset.drawn = address;
        this.files.forEach((button) => {
          button.disabled = list(figure.data).length === 0;
        });
        setText(this.notice, "");
      } catch (error) {
        this.drawn = "";
        setText(this.notice, `This chart could not be drawn: ${error.message}. Scroll away and back to try again.`);
      }
    }

    async paint(plotly) {
      const { data, layout: asked } = themed(this.figure);
      const layout = withWholeTitle(asked, this.plot.clientWidth);
      this.plot.style.minHeight = `${layout.height}px`;
      await plotly.react(this.plot, data, layout, { responsive: true, displayModeBar: false });
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
      const image = { data, layout: { ...layout, font, paper_bgcolor: ground, autosize: false, width } };
      saveFile(
        await plotly.toImage(image, { format, width, height: layout.height, scale: format === "png" ? 2 : 1 }),
        `ckv-${this.run.file ?? this.run.slug}-${this.name}.${format}`,
      );
    }

    close() {
      this.sight.disconnect();
      if (this.figure) globalThis.Plotly.purge(this.plot);
      this.node.remove();
    }
  }

  onValue(host, (value) => {
    root.hidden = value === null;
    const charts = list(value?.charts);
    heading.hidden = !value?.heading;
    setText(heading, str(value?.heading));
    words.hidden = !value?.heading;
    empty.hidden = charts.length > 0;
    const told = withTerms(value?.heading ? value.text : "");
    if (words.textContent !== told.map((part) => part.textContent ?? part).join("")) words.replaceChildren(...told);
    setText(empty, str(value?.text));
    setRegimes(head, charts.length > 0 && value.head);
    grid.hidden = charts.length === 0;
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

  new MutationObserver(() => {
    if (!element.isConnected) return;
    for (const panel of panels.values()) if (panel.figure) loadPlotly().then((plotly) => panel.paint(plotly));
  }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
}
