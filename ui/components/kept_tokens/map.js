// One zoomable heat map on two canvases: the picture, and the cursor and marks above it; pointer,
// wheel, pinch and keys.

import { clamp, make, setText, whole } from "../../../assets/scripts/dom.js";
import { alwaysKept } from "./data.js";
import { signLines } from "./ramp.js";

const GUTTER = { left: 30, right: 6, top: 9, bottom: 22 };
const NO_GUTTER = { left: 0, right: 0, top: 0, bottom: 0 };
const MATCH_HEIGHT = 4;
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
 * marks() -> {window, sinks, protected}, signed: whether cells below 0 get a line, which no grey print loses,
 * bare: without axes, as high as its box. `pick` says whether the text shows the token.
 * `app` is the shared state of all views.
 */
export class HeatMap {
  constructor(app, options) {
    this.app = app;
    this.options = options;
    this.gutter = options.bare ? NO_GUTTER : GUTTER;
    this.pointers = new Map();
    this.base = make("canvas.ckv-map-base", { "aria-hidden": "true" });
    this.top = make("canvas.ckv-map-top", {
      tabindex: "0",
      role: "img",
      onpointerdown: (event) => this.onDown(event),
      onpointermove: (event) => this.onMove(event),
      onpointerup: (event) => this.onUp(event),
      onpointercancel: (event) => this.pointers.delete(event.pointerId),
      onpointerleave: () => app.point(null),
      onkeydown: (event) => this.onKey(event),
    });
    this.top.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.tip = make("div.ckv-map-tip.ckv-num", { hidden: true, "aria-hidden": "true" });
    this.box = make("div.ckv-map", this.base, this.top, this.tip);
    this.cells = make("canvas");
    new ResizeObserver(() => app.redraw("heat")).observe(this.box);
    app.on("heat", () => this.drawHeat());
    app.on("overlay", () => this.drawOverlay());
  }

  /** The map with its caption. */
  panel(...caption) {
    return make("figure.ckv-panel.ckv-map-panel", make("figcaption.ckv-row.ckv-small", caption), this.box);
  }

  /** Plot area in CSS pixels; canvases follow the box and the screen's pixel ratio. */
  layout() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.box.clientWidth;
    const { left, right, top, bottom } = this.gutter;
    const rows = this.options.rows();
    const inner = this.options.bare ? this.box.clientHeight : clamp(rows * 6, 168, 216);
    const height = inner + top + bottom;
    if (!this.options.bare) this.box.style.height = `${height}px`;
    for (const canvas of [this.base, this.top]) resize(canvas, Math.max(1, Math.round(width * ratio)), Math.round(height * ratio));
    const w = Math.max(1, width - left - right);
    this.plot = { x: left, y: top, w, h: inner, ratio, rows, row: inner / rows };
    const [x0, x1] = this.app.range;
    this.columns = Math.min(x1 - x0, Math.max(1, Math.round(w * ratio)));
  }

  /** The pen of a canvas that is blank, in CSS pixels. */
  penOf(canvas) {
    const pen = canvas.getContext("2d");
    pen.setTransform(this.plot.ratio, 0, 0, this.plot.ratio, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    return pen;
  }

  drawHeat() {
    if (this.box.clientWidth === 0) return; // in what is closed
    this.layout();
    const { app, plot } = this;
    const [x0, x1] = app.range;
    this.paintCells();
    const pen = this.penOf(this.base);
    // Rows that share a pixel are mixed, or some would not be seen.
    Object.assign(pen, { imageSmoothingEnabled: plot.h * plot.ratio < plot.rows, imageSmoothingQuality: "high" });
    pen.drawImage(this.cells, plot.x, plot.y, plot.w, plot.h);
    this.hatch(pen);
    if (!this.options.bare) {
      this.axes(pen);
      this.regions(pen);
    }
    this.top.setAttribute(
      "aria-label",
      `${this.options.label()}. Positions ${whole(x0)} to ${whole(x1 - 1)}. Arrow keys move a cursor, plus and minus zoom, Enter picks.`,
    );
  }

  /** One pixel a cell; of a signed map a column of them, of which the middle one may be a line. */
  paintCells() {
    const { columns, cells } = this;
    const { rows, row: height } = this.plot;
    const { signed, sample } = this.options;
    const [ramp, lines] = [this.options.ramp(), signLines()];
    const parts = signed ? Math.floor(height) : 1;
    resize(cells, columns, rows * parts);
    const pen = cells.getContext("2d");
    const image = pen.createImageData(columns, rows * parts);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const step = sample(row, this.edge(column), this.edge(column + 1));
        for (let part = 0; part < parts; part += 1) pixels[(row * parts + part) * columns + column] = ramp[step];
        if (signed && lines[step]) pixels[(row * parts + (parts >> 1)) * columns + column] = lines[step];
      }
    }
    pen.putImageData(image, 0, 0);
  }

  /** Rows that may not be evicted from. */
  hatch(pen) {
    const { plot, app } = this;
    const rows = new Path2D();
    for (let row = 0; row < plot.rows; row += 1)
      if (this.options.hatched(row)) rows.rect(plot.x, plot.y + row * plot.row, plot.w, plot.row);
    pen.save();
    pen.clip(rows);
    pen.fillStyle = app.ink.surface;
    pen.fill(rows);
    pen.strokeStyle = app.ink.subdued;
    pen.beginPath();
    for (let x = plot.x - plot.h; x < plot.x + plot.w; x += 6) {
      pen.moveTo(x, plot.y + plot.h);
      pen.lineTo(x + plot.h, plot.y);
    }
    pen.stroke();
    pen.restore();
  }

  axes(pen) {
    const { plot, app } = this;
    const [x0, x1] = app.range;
    Object.assign(pen, { fillStyle: app.ink.subdued, font: app.ink.font, textAlign: "right", textBaseline: "middle" });
    for (let row = 0; row < plot.rows; row += niceStep(plot.rows, plot.h / 26)) {
      pen.fillText(String(row), plot.x - 4, plot.y + (row + 0.5) * plot.row);
    }
    pen.textBaseline = "alphabetic";
    const tick = niceStep(x1 - x0, plot.w / 84);
    for (let at = Math.ceil(x0 / tick) * tick; at < x1; at += tick) {
      const x = this.xOf(at);
      pen.fillRect(x, plot.y + plot.h + 5, 1, 3);
      pen.textAlign = x < plot.x + 14 ? "left" : x > plot.x + plot.w - 20 ? "right" : "center";
      pen.fillText(whole(at), x, plot.y + plot.h + 19);
    }
  }

  /** Under the plot the user's context and what follows it; above it what is always kept. */
  regions(pen) {
    const { plot, app } = this;
    const [first, end] = app.prompt.context;
    const under = plot.y + plot.h + 1;
    const kept = alwaysKept(app.positions, this.options.marks()).map((span) => [...span, plot.y - 4, app.ink.text]);
    for (const [from, to, y, color] of [[first, end, under, app.ink.line], [end, app.positions, under, app.ink.subdued], ...kept]) {
      const [left, right] = [from, to].map((at) => clamp(this.xOf(at), plot.x, plot.x + plot.w));
      pen.fillStyle = color;
      if (right > left) pen.fillRect(left, y, Math.max(1, right - left), 3);
    }
  }

  drawOverlay() {
    const { plot, app } = this;
    if (!plot) return;
    const [x0, x1] = app.range;
    const pen = this.penOf(this.top);
    pen.save();
    pen.beginPath();
    pen.rect(plot.x, 0, plot.w, plot.y + plot.h);
    pen.clip();
    pen.fillStyle = app.ink.match;
    for (const [first, end] of app.matches) {
      if (end > x0 && first < x1) pen.fillRect(this.xOf(first), 0, this.widthOf(first, end), Math.max(plot.y - 5, MATCH_HEIGHT));
    }
    if (app.span) this.edges(pen, this.xOf(app.span[0]), this.xOf(app.span[1]), app.ink.text);
    if (app.hover) this.cursor(pen);
    pen.restore();
    this.showTip();
  }

  /** From left to right two-tone edges, or a line where they are close, seen on every colour of the ramp. */
  edges(pen, left, right, color) {
    const { plot, app } = this;
    const places = right - left < 6 ? [(left + right) / 2] : [left, right];
    for (const [ground, width] of [
      [app.ink.surface, 3],
      [color, 1.2],
    ]) {
      pen.fillStyle = ground;
      for (const x of places) pen.fillRect(Math.round(x - width / 2), 0, width, plot.y + plot.h);
    }
  }

  cursor(pen) {
    const { plot, app } = this;
    const { map, row, position } = app.hover;
    const x = this.middleOf(position);
    this.edges(pen, x, x, app.ink.subdued);
    if (this.options.bare || map.options?.kind !== this.options.kind) return;
    Object.assign(pen, { strokeStyle: app.ink.text, lineWidth: 1 });
    pen.strokeRect(plot.x + 1, plot.y + row * plot.row, plot.w - 2, plot.row);
  }

  showTip() {
    const { hover } = this.app;
    this.tip.hidden = hover?.map !== this;
    if (this.tip.hidden) return;
    setText(this.tip, this.describe(hover));
    const left = clamp(this.xOf(hover.position) - this.tip.offsetWidth / 2, 0, this.box.clientWidth - this.tip.offsetWidth);
    this.tip.style.left = `${left}px`;
  }

  /** A cell in words, with the positions that share its column. */
  describe({ row, position }) {
    const [x0, x1] = this.app.range;
    const column = Math.floor(((position - x0 + 1) * this.columns - 1) / (x1 - x0));
    return this.options.describe(row, position, this.edge(column), this.edge(column + 1));
  }

  /** First position of a drawn column. */
  edge(column) {
    const [x0, x1] = this.app.range;
    return x0 + Math.floor(((x1 - x0) * column) / this.columns);
  }

  xOf(position) {
    const [x0, x1] = this.app.range;
    return this.plot.x + ((position - x0) / (x1 - x0)) * this.plot.w;
  }

  middleOf(position) {
    return (this.xOf(position) + this.xOf(position + 1)) / 2;
  }

  widthOf(first, end) {
    return Math.max(2, this.xOf(end) - this.xOf(first));
  }

  /** Share of the plot's width at a place of the screen, 0 to 1 inside it. */
  shareAt(x) {
    return (x - this.top.getBoundingClientRect().left - this.plot.x) / this.plot.w;
  }

  cellAt(event) {
    const [x0, x1] = this.app.range;
    const { plot } = this;
    const row = Math.floor((event.clientY - this.top.getBoundingClientRect().top - plot.y) / plot.row);
    const position = x0 + Math.floor(this.shareAt(event.clientX) * (x1 - x0));
    return { position: clamp(position, x0, x1 - 1), row: clamp(row, 0, plot.rows - 1) };
  }

  onDown(event) {
    if (event.button > 0) return;
    this.top.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    this.gesture = { moved: 0, range: this.app.range, x: event.clientX, gap: this.gap() };
  }

  /** Distance of two fingers, null unless there are two. */
  gap() {
    const [one, two, ...more] = this.pointers.values();
    return two === undefined || more.length ? null : Math.max(10, Math.abs(one - two));
  }

  onMove(event) {
    if (!this.pointers.has(event.pointerId)) {
      this.app.point({ map: this, ...this.cellAt(event) });
      return;
    }
    this.pointers.set(event.pointerId, event.clientX);
    const { app, gesture, plot } = this;
    const [x0, x1] = gesture.range;
    const gap = this.gap();
    gesture.moved = Math.max(gesture.moved, Math.abs(event.clientX - gesture.x));
    if (gap !== null && gesture.gap !== null) {
      const [one, two] = this.pointers.values();
      gesture.moved = Infinity;
      app.zoomTo(gesture.range, gesture.gap / gap, x0 + clamp(this.shareAt((one + two) / 2), 0, 1) * (x1 - x0));
    } else if (gesture.moved >= DRAG_PIXELS) {
      app.showRange(x0 - ((event.clientX - gesture.x) / plot.w) * (x1 - x0), x1 - x0);
    }
  }

  onUp(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.gesture.moved < DRAG_PIXELS) this.choose(this.cellAt(event));
    const [left] = this.pointers.values();
    if (left !== undefined) this.gesture = { moved: Infinity, range: this.app.range, x: left, gap: null };
  }

  /** Pick a cell, and bring its token into view in the text. */
  choose({ row, position }) {
    if (this.options.pick(row, position)) this.app.text.reveal(position);
  }

  /** The wheel scrolls the page until the map has the focus or Ctrl is held. */
  onWheel(event) {
    const { app } = this;
    const [x0, x1] = app.range;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways ? x1 - x0 === app.positions : !event.ctrlKey && document.activeElement !== this.top) return;
    event.preventDefault();
    if (sideways) app.pan(event.deltaX / this.plot.w);
    else app.zoomTo(app.range, Math.exp(clamp(event.deltaY, -200, 200) * 0.002), this.cellAt(event).position + 0.5);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { app } = this;
    const [x0, x1] = app.range;
    const at = app.hover?.map === this ? app.hover : { position: Math.round((x0 + x1) / 2), row: 0 };
    const step = Math.max(1, Math.round((x1 - x0) / this.columns)) * (event.shiftKey ? 10 : 1);
    const zoom = (factor) => () => app.zoomTo(app.range, factor, at.position);
    const move = (across, down) => () => this.moveCursor(at, across, down);
    const choose = () => this.choose(at);
    const act = {
      ArrowLeft: move(-step, 0),
      ArrowRight: move(step, 0),
      ArrowUp: move(0, -1),
      ArrowDown: move(0, 1),
      Home: move(-Infinity, 0),
      End: move(Infinity, 0),
      "+": zoom(0.5),
      "=": zoom(0.5),
      "-": zoom(2),
      0: () => app.showRange(0, app.positions),
      PageUp: () => app.pan(-0.8),
      PageDown: () => app.pan(0.8),
      Enter: choose,
      " ": choose,
      Escape: () => app.clear(),
    }[event.key];
    if (!act) return;
    act();
    event.preventDefault();
  }

  moveCursor(at, across, down) {
    const { app, plot } = this;
    const position = clamp(at.position + across, 0, app.positions - 1);
    const row = clamp(at.row + down, 0, plot.rows - 1);
    app.bringIntoView(position, position + 1);
    app.point({ map: this, position, row });
    app.say(this.describe({ row, position }));
  }
}

/** Setting a canvas' size blanks it, and costs a picture. */
function resize(canvas, width, height) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}
