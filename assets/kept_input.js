// Pointer, wheel, pinch and keys of a heat map.

const DRAG_PIXELS = 4;

Object.assign(HeatMap.prototype, {
  listen() {
    const { top } = this;
    top.addEventListener("pointerdown", (event) => this.onDown(event));
    top.addEventListener("pointermove", (event) => this.onMove(event));
    top.addEventListener("pointerup", (event) => this.onUp(event));
    top.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    top.addEventListener("pointerleave", () => this.app.point(null));
    top.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    top.addEventListener("keydown", (event) => this.onKey(event));
  },

  onDown(event) {
    if (event.button > 0) return;
    this.top.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    this.gesture = { moved: 0, range: [...this.app.range], x: event.clientX, gap: this.gap() };
  },

  /** Distance of two fingers, null unless there are two. */
  gap() {
    if (this.pointers.size !== 2) return null;
    const [one, two] = [...this.pointers.values()];
    return Math.max(10, Math.abs(one.x - two.x));
  },

  onMove(event) {
    const down = this.pointers.get(event.pointerId);
    if (down) {
      Object.assign(down, { x: event.clientX, y: event.clientY });
      this.onDrag(event);
      return;
    }
    this.app.point({ map: this, ...this.cellAt(event) });
  },

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
  },

  onUp(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.gesture.moved < DRAG_PIXELS) {
      const cell = this.cellAt(event);
      this.choose(cell.row, cell.position);
    }
    const [left] = this.pointers.values();
    if (left) this.gesture = { moved: Infinity, range: [...this.app.range], x: left.x, gap: null };
  },

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
  },

  onKey(event) {
    const { app } = this;
    const [x0, x1] = app.range;
    const at = app.hover?.map === this ? app.hover : { position: Math.round((x0 + x1) / 2), row: 0 };
    const step = Math.max(1, Math.round((x1 - x0) / this.columns)) * (event.shiftKey ? 10 : 1);
    const moves = {
      ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      Home: [-Infinity, 0], End: [Infinity, 0],
    };
    const acts = {
      "+": () => app.zoomTo(app.range, 0.5, at.position), "=": () => app.zoomTo(app.range, 0.5, at.position),
      "-": () => app.zoomTo(app.range, 2, at.position), 0: () => app.showRange(0, app.positions),
      PageUp: () => app.showRange(x0 - (x1 - x0) * 0.8, x1 - x0),
      PageDown: () => app.showRange(x0 + (x1 - x0) * 0.8, x1 - x0),
      Enter: () => this.choose(at.row, at.position), " ": () => this.choose(at.row, at.position),
      Escape: () => app.clear(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.moveCursor(at, ...moves[event.key]);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  },

  moveCursor(at, across, down) {
    const { app, plot } = this;
    const position = clamp(at.position + across, 0, app.positions - 1);
    const row = clamp(at.row + down, 0, plot.rows - 1);
    app.bringIntoView(position, position + 1);
    app.point({ map: this, position, row });
    const [first, end] = this.binAt(position);
    app.say(this.describe(row, position, first, end));
  },
});
