// One zoomable heat map on two canvases: the picture, and the cursor and marks above it.

const GUTTER = { left: 30, right: 6, top: 9, bottom: 22 };
const MIN_SPAN = 16;

function niceStep(span, ticks) {
  const rough = span / ticks;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const factor = [1, 2, 5, 10].find((each) => each * power >= rough);
  return Math.max(1, factor * power);
}

/**
 * A map of rows x positions.
 *
 * `options`: rows, label(), sample(row, first, end) -> ramp step, ramp() -> pixels, rowName,
 * hatched(row), describe(row, position, first, end) -> text, layerOf(row), pick(row, position),
 * marks() -> {window, sinks, protected}, signed: whether cells below 0 get a line, which no grey print loses.
 * `app` is the shared state of all views.
 */
class HeatMap {
  constructor(app, options) {
    Object.assign(this, options, { app, pointers: new Map() });
    this.base = make("canvas", { class: "ckv-map-base", "aria-hidden": "true" });
    this.top = make("canvas", { class: "ckv-map-top", tabindex: "0", role: "img" });
    this.tip = make("div", { class: "ckv-map-tip", hidden: true, "aria-hidden": "true" });
    this.box = make("div", { class: "ckv-map" }, this.base, this.top, this.tip);
    this.cells = document.createElement("canvas");
    this.signs = options.signed ? document.createElement("canvas") : null;
    this.listen();
    new ResizeObserver(() => app.later("resize", () => app.redraw("heat"))).observe(this.box);
  }

  /** Plot area in CSS pixels; canvases follow the box and the screen's pixel ratio. */
  layout() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.box.clientWidth;
    const rows = this.rows();
    const inner = clamp(rows * 6, 168, 216);
    const height = inner + GUTTER.top + GUTTER.bottom;
    if (this.box.style.height !== `${height}px`) this.box.style.height = `${height}px`;
    for (const canvas of [this.base, this.top]) {
      const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.round(height * ratio)];
      if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    }
    this.plot = { x: GUTTER.left, y: GUTTER.top, w: Math.max(1, width - GUTTER.left - GUTTER.right), h: inner, ratio, rows };
  }

  drawHeat() {
    this.layout();
    const { app, plot } = this;
    const [x0, x1] = app.range;
    const columns = Math.min(x1 - x0, Math.max(1, Math.round(plot.w * plot.ratio)));
    this.columns = columns;
    this.paintCells(x0, x1, columns);
    const pen = this.base.getContext("2d");
    pen.setTransform(plot.ratio, 0, 0, plot.ratio, 0, 0);
    pen.clearRect(0, 0, this.base.width, this.base.height);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.cells, 0, 0, columns, plot.rows, plot.x, plot.y, plot.w, plot.h);
    if (this.signs) this.drawSigns(pen);
    this.hatch(pen);
    this.axes(pen);
    this.top.setAttribute("aria-label", `${this.label()}. Positions ${whole(x0)} to ${whole(x1 - 1)}. Arrow keys move a cursor, plus and minus zoom, Enter picks.`);
    this.drawOverlay();
  }

  paintCells(x0, x1, columns) {
    const { rows } = this.plot;
    const [cells, signs] = [this.cells, this.signs].map((canvas) => canvas && pixelsOf(canvas, columns, rows));
    const { pixels } = cells;
    const [ramp, lines] = [this.ramp(), signLines()];
    const span = x1 - x0;
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const first = x0 + Math.floor((span * column) / columns);
        const end = x0 + Math.floor((span * (column + 1)) / columns);
        const step = this.sample(row, first, end);
        pixels[row * columns + column] = ramp[step];
        if (signs) signs.pixels[row * columns + column] = lines[step];
      }
    }
    cells.put();
    signs?.put();
  }

  /** A line through the middle of every cell below 0. */
  drawSigns(pen) {
    const { plot, columns } = this;
    const each = plot.h / plot.rows;
    for (let row = 0; row < plot.rows; row += 1) {
      pen.drawImage(this.signs, 0, row, columns, 1, plot.x, Math.round(plot.y + (row + 0.5) * each), plot.w, 1);
    }
  }

  /** Pick a cell, and bring its token into view in the text. */
  choose(row, position) {
    this.pick(row, position);
    this.app.text.reveal(position);
  }

  hatch(pen) {
    const { plot, app } = this;
    const height = plot.h / plot.rows;
    for (let row = 0; row < plot.rows; row += 1) {
      if (!this.hatched(row)) continue;
      pen.save();
      pen.beginPath();
      pen.rect(plot.x, plot.y + row * height, plot.w, height);
      pen.clip();
      pen.fillStyle = app.ink.surface;
      pen.fillRect(plot.x, plot.y + row * height, plot.w, height);
      pen.strokeStyle = app.ink.subdued;
      pen.lineWidth = 1;
      pen.beginPath();
      for (let x = plot.x - plot.h; x < plot.x + plot.w; x += 6) {
        pen.moveTo(x, plot.y + plot.h);
        pen.lineTo(x + plot.h, plot.y);
      }
      pen.stroke();
      pen.restore();
    }
  }

  axes(pen) {
    const { plot, app } = this;
    pen.fillStyle = app.ink.subdued;
    pen.font = app.ink.font;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const each = plot.h / plot.rows;
    const step = niceStep(plot.rows, plot.h / 26);
    for (let row = 0; row < plot.rows; row += step) {
      pen.fillText(this.rowName(row), plot.x - 4, plot.y + (row + 0.5) * each);
    }
    pen.textBaseline = "alphabetic";
    const [x0, x1] = app.range;
    const tick = niceStep(x1 - x0, plot.w / 84);
    for (let at = Math.ceil(x0 / tick) * tick; at < x1; at += tick) {
      const x = this.xOf(at);
      pen.fillRect(x, plot.y + plot.h + 5, 1, 3);
      pen.textAlign = x < plot.x + 14 ? "left" : x > plot.x + plot.w - 20 ? "right" : "center";
      pen.fillText(whole(at), x, plot.y + plot.h + 19);
    }
    this.regions(pen);
  }

  /** Under the plot the user's context and what follows it; above it what is always kept. */
  regions(pen) {
    const { plot, app } = this;
    const [first, end] = app.prompt.context;
    const under = plot.y + plot.h + 1;
    this.strip(pen, first, end, under, app.ink.context);
    this.strip(pen, end, app.positions, under, app.ink.question);
    for (const [from, to] of alwaysKept(app.positions, this.marks())) this.strip(pen, from, to, plot.y - 4, app.ink.text);
  }

  strip(pen, first, end, y, color) {
    const from = clamp(this.xOf(first), this.plot.x, this.plot.x + this.plot.w);
    const to = clamp(this.xOf(end), this.plot.x, this.plot.x + this.plot.w);
    if (to <= from) return;
    pen.fillStyle = color;
    pen.fillRect(from, y, Math.max(1, to - from), 3);
  }

  drawOverlay() {
    if (!this.plot) return;
    const { plot, app } = this;
    const pen = this.top.getContext("2d");
    pen.setTransform(plot.ratio, 0, 0, plot.ratio, 0, 0);
    pen.clearRect(0, 0, this.top.width, this.top.height);
    pen.save();
    pen.beginPath();
    pen.rect(plot.x, 0, plot.w, plot.y + plot.h);
    pen.clip();
    for (const [first, end] of app.matchesInView()) this.band(pen, first, end, app.ink.match, 0, plot.y - 5);
    if (app.span) this.band(pen, ...app.span, app.ink.span, plot.y - 6, plot.h + 6);
    if (app.token !== null && app.token < app.positions) this.line(pen, app.token, app.ink.pick);
    if (app.hover) this.cursor(pen);
    pen.restore();
    this.showTip();
  }

  band(pen, first, end, color, y, height) {
    const x = this.xOf(first);
    const width = Math.max(2, this.xOf(end) - x);
    if (height > 20) {
      // Two-tone edges, seen on every colour of the ramp.
      for (const [line, ink] of [[3, "#ffffff"], [1.5, color]]) {
        Object.assign(pen, { strokeStyle: ink, lineWidth: line });
        pen.strokeRect(x - 1, y, width + 2, height);
      }
      return;
    }
    pen.fillStyle = color;
    pen.fillRect(x, y, width, height);
  }

  /** A two-tone line, seen on every colour of the ramp. */
  line(pen, position, color) {
    const x = (this.xOf(position) + this.xOf(position + 1)) / 2;
    pen.fillStyle = "#ffffff";
    pen.fillRect(x - 1.5, 0, 3, this.plot.y + this.plot.h);
    pen.fillStyle = color;
    pen.fillRect(x - 0.5, 0, 1, this.plot.y + this.plot.h);
  }

  cursor(pen) {
    const { plot, app } = this;
    const row = this.rowOf(app.hover);
    this.line(pen, app.hover.position, "#000000");
    if (row === null) return;
    const each = plot.h / plot.rows;
    pen.strokeStyle = "#ffffff";
    pen.lineWidth = 2;
    pen.strokeRect(plot.x + 1, plot.y + row * each, plot.w - 2, each);
  }

  showTip() {
    const { hover } = this.app;
    const mine = hover && hover.map === this;
    this.tip.hidden = !mine;
    if (!mine) return;
    const [first, end] = this.binAt(hover.position);
    setText(this.tip, this.describe(hover.row, hover.position, first, end));
    const left = clamp(this.xOf(hover.position) - this.tip.offsetWidth / 2, 0, this.box.clientWidth - this.tip.offsetWidth);
    this.tip.style.left = `${left}px`;
  }

  xOf(position) {
    const [x0, x1] = this.app.range;
    return this.plot.x + ((position - x0) / (x1 - x0)) * this.plot.w;
  }

  /** Positions that share the drawn column of this one. */
  binAt(position) {
    const [x0, x1] = this.app.range;
    const span = x1 - x0;
    const column = Math.floor(((position - x0 + 1) * this.columns - 1) / span);
    return [x0 + Math.floor((span * column) / this.columns), x0 + Math.floor((span * (column + 1)) / this.columns)];
  }

  rowOf(hover) {
    return hover.map.kind === this.kind ? hover.row : null;
  }

  cellAt(event) {
    const box = this.top.getBoundingClientRect();
    const [x0, x1] = this.app.range;
    const { plot } = this;
    const share = (event.clientX - box.left - plot.x) / plot.w;
    const row = Math.floor(((event.clientY - box.top - plot.y) / plot.h) * plot.rows);
    return {
      position: clamp(x0 + Math.floor(share * (x1 - x0)), x0, x1 - 1),
      row: clamp(row, 0, plot.rows - 1),
    };
  }
}
