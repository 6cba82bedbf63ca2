// The state that all views of one run share, and the maps' descriptions. Views redraw per frame.

import { clamp, percent, setText, str, whole } from "../../../assets/scripts/dom.js";
import { DENSITY_STOPS, divergingStops } from "../../../assets/scripts/marks.js";
import { HeatMap, MIN_SPAN } from "./map.js";
import { densityStep, differenceStep, rampOf } from "./ramp.js";

const HASH_KEYS = ["token", "variant", "layer", "span"];
const INK = {
  text: "--body-text-color",
  subdued: "--body-text-color-subdued",
  surface: "--background-fill-secondary",
  line: "--ckv-line",
  context: "--ckv-context",
  question: "--ckv-question",
  match: "--ckv-match",
  pick: "--ckv-pick",
  font: "--font",
};

/** What to set a variant against: the same method without CriticalKV, else any other variant. */
function baseOf(variants, chosen) {
  const base = str(variants[chosen].spec).split(/[+:]/, 1)[0];
  const found = variants.findIndex((each) => str(each.spec).split(":", 1)[0] === base && each !== variants[chosen]);
  if (found >= 0) return found;
  return variants.length > 1 && chosen === 0 ? 1 : 0;
}

export class KeptApp {
  constructor({ prompt, variants, shape }, host, live) {
    this.prompt = prompt;
    this.variants = variants;
    this.shape = shape;
    this.positions = shape.positions;
    this.host = host;
    this.live = live;
    this.evictable = new Set(shape.evictable);
    this.range = [0, this.positions];
    this.hover = this.token = this.span = null;
    this.layer = shape.evictable[0] ?? 0;
    const critical = variants.findIndex((each) => str(each.spec).includes("+critical"));
    this.chosen = Math.max(0, critical);
    this.pair = [this.chosen, baseOf(variants, this.chosen)];
    this.matches = [];
    this.answer = "";
    this.extending = false;
    this.views = [];
    this.due = new Set();
  }

  current() {
    return this.variants[this.chosen];
  }

  /** Where the reference answer stands in the compressed prompt. */
  answerSpans() {
    return this.answer.trim() ? this.prompt.occurrences(this.answer, this.positions) : [];
  }

  /** Begin with the reference answer as the evidence; the address stays as it is. */
  selectAnswer() {
    const [span] = this.answerSpans();
    if (!span) return null;
    Object.assign(this, { span, answerAt: 0 });
    this.redraw("overlay", "text", "panels");
    return span[0];
  }

  slotCount() {
    return this.shape.evictable.length * this.shape.heads;
  }

  tokenName(token) {
    const text = this.prompt.pieces[token] ?? "";
    return `token ${whole(token)} “${text.replace(/\n/g, "↵")}”`;
  }

  /** Call `draw` in each frame in which a part is to be drawn: heat, overlay, shade, text, panels, search or step. */
  on(part, draw) {
    this.views.push({ part, draw });
  }

  redraw(...parts) {
    parts.forEach((part) => this.due.add(part));
    if (this.due.has("heat")) this.due.add("overlay");
    this.frame ??= requestAnimationFrame(() => {
      const { due } = this;
      this.due = new Set();
      this.frame = null;
      const from = performance.now();
      for (const { part, draw } of this.views) if (due.has(part)) draw();
      if (due.has("heat")) this.host.element.dataset.drawMs = (performance.now() - from).toFixed(1);
    });
  }

  say(text) {
    setText(this.live, text);
  }

  point(hover) {
    if (hover === null && this.hover === null) return;
    this.hover = hover;
    this.redraw("overlay", "text");
  }

  /** Show `span` positions from `first` on, kept inside the prompt. */
  showRange(first, span) {
    const size = clamp(Math.round(span), Math.min(MIN_SPAN, this.positions), this.positions);
    const from = clamp(Math.round(first), 0, this.positions - size);
    this.range = [from, from + size];
    this.redraw("heat");
  }

  /** Scale a range by `factor` so that `anchor` stays where it is. */
  zoomTo([x0, x1], factor, anchor) {
    const span = clamp((x1 - x0) * factor, MIN_SPAN, this.positions);
    this.showRange(anchor - ((anchor - x0) / (x1 - x0)) * span, span);
  }

  /** Move by a share of what is seen. */
  pan(share) {
    const [x0, x1] = this.range;
    this.showRange(x0 + share * (x1 - x0), x1 - x0);
  }

  bringIntoView(first, end) {
    const [x0, x1] = this.range;
    if (first < x0 || end > x1) this.showRange((first + end) / 2 - (x1 - x0) / 2, x1 - x0);
  }

  pick({ token = this.token, layer = this.layer, chosen = this.chosen }) {
    if (chosen !== this.chosen) this.redraw("shade");
    Object.assign(this, { token, layer, chosen, extending: false });
    this.say([str(this.current().label), `layer ${layer}`, ...(token === null ? [] : [this.tokenName(token)])].join(", "));
    this.redraw("heat", "text", "panels");
    this.writeHash();
  }

  /** `quiet` leaves the maps where they are. */
  selectSpan(first, end, { quiet = false } = {}) {
    this.span = [clamp(first, 0, this.prompt.pieces.length - 1), clamp(end, 1, this.prompt.pieces.length)];
    this.extending = false;
    if (!quiet && first < this.positions) this.bringIntoView(first, Math.min(end, this.positions));
    this.redraw("overlay", "text", "panels");
    this.writeHash();
  }

  clear() {
    Object.assign(this, { token: null, span: null, hover: null, matches: [], extending: false });
    this.say("Selection cleared");
    this.redraw("overlay", "text", "panels", "search");
    this.writeHash();
  }

  /** Keep what others put into the hash. */
  writeHash() {
    const fields = new URLSearchParams(location.hash.slice(1));
    HASH_KEYS.forEach((key) => fields.delete(key));
    if (this.token !== null) fields.set("token", String(this.token));
    if (this.span) fields.set("span", `${this.span[0]}-${this.span[1] - 1}`);
    if (this.token !== null || this.span) {
      fields.set("variant", this.current().index);
      fields.set("layer", this.layer);
    }
    const hash = fields.toString();
    history.replaceState(history.state, "", location.pathname + location.search + (hash ? `#${hash}` : ""));
  }

  /** Go to the spot of the address; what is no number or out of range is ignored. */
  applyHash() {
    const fields = new URLSearchParams(location.hash.slice(1));
    const { length } = this.prompt.pieces;
    const number = (text, end) => (/^\d{1,9}$/.test(text ?? "") && Number(text) < end ? Number(text) : null);
    const variant = number(fields.get("variant"), Infinity);
    const chosen = this.variants.findIndex((each) => each.index === variant);
    if (chosen >= 0) this.chosen = chosen;
    this.layer = number(fields.get("layer"), this.shape.layers) ?? this.layer;
    this.token = number(fields.get("token"), length) ?? this.token;
    const [first, last, ...more] = (fields.get("span") ?? "").split("-").map((text) => number(text, length));
    if (first !== null && last !== null && first <= last && more.length === 0) this.span = [first, last + 1];
    this.redraw("heat", "shade", "text", "panels");
    return this.span?.[0] ?? this.token;
  }

  /** Colours and font of the canvases, from the theme in force. */
  readInk() {
    const style = getComputedStyle(this.host.root);
    this.ink = Object.fromEntries(Object.entries(INK).map(([name, variable]) => [name, style.getPropertyValue(variable).trim()]));
    this.ink.font = `11px ${this.ink.font || "sans-serif"}`;
    this.density = rampOf(DENSITY_STOPS);
    this.diverging = rampOf(divergingStops());
  }
}

/** "token 12 “word”", and the bin when several positions share a pixel. */
function placeText(app, position, first, end) {
  const bin = end - first > 1 ? ` (column of ${whole(end - first)} positions)` : "";
  return `${app.tokenName(position)}${bin}`;
}

/** What both maps of layers by positions have. */
const byLayer = (app) => ({ kind: "layer", rows: () => app.shape.layers, hatched: (row) => !app.evictable.has(row) });

export function layerMap(app, variant, at) {
  const { heads } = app.shape;
  const share = (row, first, end) => variant.kept.layerSum(row, first, end) / ((end - first) * heads);
  return new HeatMap(app, {
    ...byLayer(app),
    ramp: () => app.density,
    label: () => `${str(variant.label)}: share of KV heads that keep each entry, layers by positions`,
    sample: (row, first, end) => densityStep(share(row, first, end)),
    marks: () => variant,
    describe: (row, position, first, end) =>
      `layer ${row} · ${placeText(app, position, first, end)} · kept by ${variant.kept.headsKeeping(row, position)} of ${heads} KV heads${end - first > 1 ? ` · column ${percent(share(row, first, end))}` : ""}`,
    pick: (row, position) => app.pick({ token: position, layer: row, chosen: at }),
  });
}

export function differenceMap(app) {
  const pair = () => app.pair.map((at) => app.variants[at]);
  const named = (words, joint) => pair().map(words).join(joint);
  const { heads } = app.shape;
  return new HeatMap(app, {
    ...byLayer(app),
    ramp: () => app.diverging,
    signed: true,
    label: () => `Difference: share of KV heads, ${named((each) => str(each.label), " minus ")}`,
    sample: (row, first, end) => {
      const [one, two] = pair();
      const gap = one.kept.layerSum(row, first, end) - two.kept.layerSum(row, first, end);
      return differenceStep(gap / ((end - first) * heads));
    },
    marks: () => ({}),
    describe: (row, position, first, end) => {
      const kept = named((each) => `${str(each.label)} ${each.kept.headsKeeping(row, position)}`, ", ");
      return `layer ${row} · ${placeText(app, position, first, end)} · KV heads of ${heads}: ${kept}`;
    },
    pick: (row, position) => app.pick({ token: position, layer: row }),
  });
}

export function headMap(app) {
  const kept = () => app.current().kept;
  return new HeatMap(app, {
    kind: "head",
    rows: () => app.shape.heads,
    ramp: () => app.density,
    label: () => `${str(app.current().label)}, layer ${app.layer}: entries each KV head keeps`,
    sample: (row, first, end) => densityStep(kept().headSum(app.layer, row, first, end) / (end - first)),
    hatched: () => !app.evictable.has(app.layer),
    marks: () => app.current(),
    describe: (row, position, first, end) =>
      `layer ${app.layer} · KV head ${row} · ${placeText(app, position, first, end)} · ${kept().keeps(app.layer, row, position) ? "kept" : "evicted"}`,
    pick: (_row, position) => app.pick({ token: position }),
  });
}
