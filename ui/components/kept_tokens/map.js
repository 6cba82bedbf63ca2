// One zoomable heat map on two canvases: the picture, and the cursor and marks above it; pointer,
// wheel, pinch and keys.

import { clamp, make, setText, whole } from "../../../assets/scripts/dom.js";
import { alwaysKept } from "./data.js";
import { pixelsOf, signLines } from "./ramp.js";

const GUTTER = { left: 30, right: 6, top: 9, bottom: 22 };
const DRAG_PIXELS = 4;
export const MIN_SPAN = 16;

export function niceStep(span, ticks) {
  const rough = span / ticks;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const factor = [1, 2, 5, 10].find((each) => each * power >= rough);
  return Math.max(1, factor * power);
}

/**
 * A map of rows x positions.
 *
 * `options`: rows, label(), sample(row, first, end) -> ramp step, ramp() -> pixels,
 * hatched(row), describe(row, position, first, end) -> text, pick(row, position),
 * marks() -> {window, sinks, protected}, signed: whether cells below 0 get a line, which no grey print loses.
 * `app` is the shared state of all views.
 */
export class HeatMap {
  constructor(app, options) {
    this.app = app;
    this.options = options;
    this.pointers = new Map();
    this.base = make("canvas.ckv-map-base", { "aria-hidden": "true" });
    this.top = make("canvas.ckv-map-top", { tabindex: "0", role: "img" });
    this.tip = make("div.ckv-map-tip", { hidden: true, "aria-hidden": "true" });
    this.box = make("div.ckv-map", this.base, this.top, this.tip);
    this.cells = document.createElement("canvas");
    this.signs = options.signed ? document.createElement("canvas") : null;
    this.listen();
    new ResizeObserver(() => app.later("resize", () => app.redraw("heat"))).observe(this.box);
  }

  /** Plot area in CSS pixels; canvases follow the box and the screen's pixel ratio. */
  layout() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.box.clientWidth;
    const rows = this.options.rows();
    const inner = clamp(rows * 6, 168, 216);
    const height = inner + GUTTER.top + GUTTER.bottom;
    if (this.box.style.height !== `${height}px`) this.box.style.height = `${height}px`;
    for (const canvas of [this.base, this.top]) {
      const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.round(height * ratio)];
      if (canvas.width !== w || canvas.height !== h) {
        canvas.width = w;
        canvas.height = h;
      }
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
    this.top.setAttribute(
      "aria-label",
      `${this.options.label()}. Positions ${whole(x0)} to ${whole(x1 - 1)}. Arrow keys move a cursor, plus and minus zoom, Enter picks.`,
    );
    this.drawOverlay();
  }

  paintCells(x0, x1, columns) {
    const { rows } = this.plot;
    const [cells, signs] = [this.cells, this.signs].map((canvas) => canvas && pixelsOf(canvas, columns, rows));
    const { pixels } = cells;
    const [ramp, lines] = [this.options.ramp(), signLines()];
    const span = x1 - x0;
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const first = x0 + Math.floor((span * column) / columns);
        const end = x0 + Math.floor((span * (column + 1)) / columns);
        const step = this.options.sample(row, first, end);
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
    this.options.pick(row, position);
    this.app.text.reveal(position);
  }

  hatch(pen) {
    const { plot, app } = this;
    const height = plot.h / plot.rows;
    for (let row = 0; row < plot.rows; row += 1) {
      if (!this.options.hatched(row)) continue;
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
      pen.fillText(String(row), plot.x - 4, plot.y + (row + 0.5) * each);
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
    for (const [from, to] of alwaysKept(app.positions, this.options.marks())) this.strip(pen, from, to, plot.y - 4, app.ink.text);
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
      for (const [line, ink] of [
        [3, "#ffffff"],
        [1.5, color],
      ]) {
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
    setText(this.tip, this.options.describe(hover.row, hover.position, first, end));
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
    return hover.map.options?.kind === this.options.kind ? hover.row : null;
  }

  cellAt(event) {
    const box = this.top.getBoundingClientRect();
    const [x0, x1] = this.app.range;
    const { plot } = this;
    const share = (event.clientX - box.left - plot.x) / plot.w;
    const row = Math.floor(((event.clientY - box.top - plot.y) / plot.h) * plot.rows);
    return { position: clamp(x0 + Math.floor(share * (x1 - x0)), x0, x1 - 1), row: clamp(row, 0, plot.rows - 1) };
  }

  listen() {
    const { top } = this;
    top.addEventListener("pointerdown", (event) => this.onDown(event));
    top.addEventListener("pointermove", (event) => this.onMove(event));
    top.addEventListener("pointerup", (event) => this.onUp(event));
    top.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    top.addEventListener("pointerleave", () => this.app.point(null));
    top.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    top.addEventListener("keydown", (event) => this.onKey(event));
  }

  onDown(event) {
    if (event.button > 0) return;
    this.top.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    this.gesture = { moved: 0, range: [...this.app.range], x: event.clientX, gap: this.gap() };
  }

  /** Distance of two fingers, null unless there are two. */
  gap() {
    if (this.pointers.size !== 2) return null;
    const [one, two] = [...this.pointers.values()];
    return Math.max(10, Math.abs(one.x - two.x));
  }

  onMove(event) {
    const down = this.pointers.get(event.pointerId);
    if (down) {
      Object.assign(down, { x: event.clientX, y: event.clientY });
      this.onDrag(event);
      return;
    }
    this.app.point({ map: this, ...this.cellAt(event) });
  }

  onDrag(event) {
    const { app, gesture, plot } = this;
    const gap = this.gap();
    const [x0, x1] = gesture.range;
    gesture.moved = Math.max(gesture.moved, Math.abs(event.clientX - gesture.x));
    if (gap !== null && gesture.gap !== null) {
      const box = this.top.getBoundingClientRect();
      const middle = ([...this.pointers.values()].reduce((sum, at) => sum + at.x, 0) / 2 - box.left - plot.x) / plot.w;
      gesture.moved = Infinity;
      app.zoomTo(gesture.range, gesture.gap / gap, x0 + clamp(middle, 0, 1) * (x1 - x0));
    } else if (gesture.moved >= DRAG_PIXELS) {
      app.showRange(x0 - ((event.clientX - gesture.x) / plot.w) * (x1 - x0), x1 - x0);
    }
  }

  onUp(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.gesture.moved < DRAG_PIXELS) {
      const cell = this.cellAt(event);
      this.choose(cell.row, cell.position);
    }
    const [left] = this.pointers.values();
    if (left) this.gesture = { moved: Infinity, range: [...this.app.range], x: left.x, gap: null };
  }

  /** The wheel scrolls the page until the map has the focus or Ctrl is held. */
  onWheel(event) {
    const { app } = this;
    const [x0, x1] = app.range;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      if (x1 - x0 === app.positions) return;
      event.preventDefault();
      app.showRange(x0 + (event.deltaX / this.plot.w) * (x1 - x0), x1 - x0);
      return;
    }
    if (!event.ctrlKey && document.activeElement !== this.top) return;
    event.preventDefault();
    const factor = Math.exp(clamp(event.deltaY, -200, 200) * 0.002);
    app.zoomTo(app.range, factor, this.cellAt(event).position + 0.5);
  }

  onKey(event) {
    const { app } = this;
    const [x0, x1] = app.range;
    const at = app.hover?.map === this ? app.hover : { position: Math.round((x0 + x1) / 2), row: 0 };
    const step = Math.max(1, Math.round((x1 - x0) / this.columns)) * (event.shiftKey ? 10 : 1);
    const moves = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      Home: [-Infinity, 0],
      End: [Infinity, 0],
    };
    const acts = {
      "+": () => app.zoomTo(app.range, 0.5, at.position),
      "=": () => app.zoomTo(app.range, 0.5, at.position),
      "-": () => app.zoomTo(app.range, 2, at.position),
      0: () => app.showRange(0, app.positions),
      PageUp: () => app.showRange(x0 - (x1 - x0) * 0.8, x1 - x0),
      PageDown: () => app.showRange(x0 + (x1 - x0) * 0.8, x1 - x0),
      Enter: () => this.choose(at.row, at.position),
      " ": () => this.choose(at.row, at.position),
      Escape: () => app.clear(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.moveCursor(at, ...moves[event.key]);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  }

  moveCursor(at, across, down) {
    const { app, plot } = this;
    const position = clamp(at.position + across, 0, app.positions - 1);
    const row = clamp(at.row + down, 0, plot.rows - 1);
    app.bringIntoView(position, position + 1);
    app.point({ map: this, position, row });
    const [first, end] = this.binAt(position);
    app.say(this.options.describe(row, position, first, end));
  }
}

/** A map with its caption, which redraws itself. */
export function mapPanel(map, caption) {
  map.app.views.push((due) => {
    if (due.has("heat")) map.drawHeat();
    else if (due.has("overlay")) map.drawOverlay();
  });
  return make("figure.ckv-panel.ckv-map-panel", make("figcaption", caption), map.box);
}
