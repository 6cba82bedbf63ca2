// The state that all views of one run share, and the maps' descriptions. Views redraw per frame.

import { chosenVariant } from "../../../assets/scripts/choice.js";
import { clamp, list, percent, setText, str, whole } from "../../../assets/scripts/dom.js";
import { divergingStops, hueOf } from "../../../assets/scripts/marks.js";
import { KeptSet } from "./data.js";
import { HeatMap, MIN_SPAN } from "./map.js";
import { DEEPEST, densityStep, differenceStep, rampOf, shadeColor } from "./ramp.js";

const HASH_KEYS = ["variant", "layer", "span"];
const INK = {
  text: "--ckv-ink",
  subdued: "--ckv-ink-3",
  surface: "--ckv-surface",
  line: "--ckv-line-2",
  match: "--ckv-mark-line",
  font: "--font",
};
const QUOTED_TOKENS = 24;

/** A whole number below `end`; null for any other text. */
const numberIn = (text, end) => (/^\d{1,9}$/.test(text ?? "") && Number(text) < end ? Number(text) : null);

/** What to set a variant against: the same method without CriticalKV, else any other variant. */
function baseOf(variants, chosen) {
  const { method } = variants[chosen];
  const found = variants.findIndex((each) => each.method === method && !each.critical && each !== variants[chosen]);
  if (found >= 0) return found;
  return variants.length > 1 && chosen === 0 ? 1 : 0;
}

/** A variant is {index, look, label, spec, method, critical, kept, stored, ramp, color}: `stored` is its set in the run, `kept` what is shown. */
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
    this.hover = this.span = null;
    this.firstLayer = shape.evictable[0] ?? 0;
    this.layer = this.firstLayer;
    this.chosen = 0;
    const critical = Math.max(
      0,
      variants.findIndex((each) => each.critical),
    );
    this.pair = [critical, baseOf(variants, critical)];
    this.matches = [];
    this.answer = "";
    this.answers = [];
    this.extending = false;
    this.whyAddress = () => ""; // where to ask why the answer was lost; empty where nobody computes
    this.views = [];
    this.due = new Set();
  }

  current() {
    return this.variants[this.chosen];
  }

  /** Begin with the expected answer as the evidence; the address stays as it is. */
  setAnswer(answer) {
    this.answer = answer.trim();
    this.answers = this.answer ? this.prompt.occurrences(answer, this.positions) : [];
    this.span = this.answers[0] ?? null;
    this.redraw("overlay", "text", "panels");
  }

  /** Which of the answer's places the span is; -1 for none. */
  answerAt() {
    const { span } = this;
    return span ? this.answers.findIndex(([first, end]) => first === span[0] && end === span[1]) : -1;
  }

  /** The part of the span that eviction could take, [first, end); null for none. */
  judged() {
    if (!this.span || this.span[0] >= this.positions) return null;
    return [this.span[0], Math.min(this.span[1], this.positions)];
  }

  /** The span's text, cut where it is long. */
  quote() {
    const [first, end] = this.span;
    const words = this.prompt.pieces
      .slice(first, Math.min(end, first + QUOTED_TOKENS))
      .join("")
      .trim()
      .replace(/\n/g, "↵");
    return words + (end - first > QUOTED_TOKENS ? " …" : "");
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

  /** As `replaceKept` of data.js; an Error where bits are of another shape. */
  replace(sets) {
    for (const variant of this.variants) {
      const bits = sets?.[variant.index];
      if (bits && bits.length !== variant.stored.bits.length) throw new Error(`${variant.label}: ${bits.length} bytes`);
      variant.kept = bits ? new KeptSet(bits, this.shape) : variant.stored;
    }
    this.redraw("heat", "shade", "panels");
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

  /** Choose a variant: its row, its shades in the text and its heads; the page's other parts hear it by the address. */
  choose(chosen) {
    if (chosen === this.chosen) return false;
    this.chosen = chosen;
    this.say(`${str(this.current().label)} is chosen`);
    this.redraw("heat", "shade", "panels");
    this.writeHash();
    return false;
  }

  showLayer(layer) {
    this.layer = layer;
    this.redraw("heat", "panels");
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

  /** One token as the span, named with its layer. */
  pick(token, layer = this.layer) {
    this.layer = layer;
    this.say([str(this.current().label), `layer ${layer}`, this.tokenName(token)].join(", "));
    this.selectSpan(token, token + 1);
    this.redraw("heat");
    return true;
  }

  /** Back to the expected answer, or to no span where there is none. */
  clear() {
    Object.assign(this, { span: this.answers[0] ?? null, hover: null, matches: [], extending: false });
    this.say("Selection cleared");
    this.redraw("overlay", "text", "panels", "search");
    this.writeHash();
  }

  /** Keep what others put into the hash, and tell them of the change. */
  writeHash() {
    const fields = new URLSearchParams(location.hash.slice(1));
    HASH_KEYS.forEach((key) => fields.delete(key));
    fields.set("variant", this.current().index);
    if (this.layer !== this.firstLayer) fields.set("layer", this.layer);
    if (this.span && this.answerAt() !== 0) fields.set("span", `${this.span[0]}-${this.span[1] - 1}`);
    history.replaceState(history.state, "", `${location.pathname}${location.search}#${fields}`);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  }

  /** Go to the spot of the address; what is no number or out of range is ignored. Gives the token to show, null for none. */
  applyHash() {
    const fields = new URLSearchParams(location.hash.slice(1));
    const { length } = this.prompt.pieces;
    const chosen = this.variants.findIndex((each) => each.index === chosenVariant());
    if (chosen >= 0) this.chosen = chosen;
    this.layer = numberIn(fields.get("layer"), this.shape.layers) ?? this.layer;
    const [first, last, ...more] = (fields.get("span") ?? "").split("-").map((text) => numberIn(text, length));
    const before = list(this.span);
    if (first !== null && last !== null && first <= last && more.length === 0) this.span = [first, last + 1];
    this.redraw("heat", "shade", "text", "panels");
    return list(this.span).some((place, at) => place !== before[at]) ? this.span[0] : null;
  }

  /** Colours and font of the canvases, from the theme in force. */
  readInk() {
    const style = getComputedStyle(this.host.root);
    this.ink = Object.fromEntries(Object.entries(INK).map(([name, variable]) => [name, style.getPropertyValue(variable).trim()]));
    this.ink.font = `11px ${this.ink.font || "sans-serif"}`;
    this.diverging = rampOf(divergingStops());
    for (const variant of this.variants) {
      variant.color = hueOf(variant.look);
      variant.ramp = rampOf([this.ink.surface, variant.color]);
      variant.shade = shadeColor(variant.color, this.ink.surface, this.ink.text, DEEPEST);
    }
  }
}

/** "token 12 “word”", and the bin when several positions share a pixel. */
function placeText(app, position, first, end) {
  const bin = end - first > 1 ? ` (column of ${whole(end - first)} positions)` : "";
  return `${app.tokenName(position)}${bin}`;
}

/** What both maps of layers by positions have. */
const byLayer = (app) => ({ kind: "layer", rows: () => app.shape.layers, hatched: (row) => !app.evictable.has(row) });

/** A map of one variant; `more` are further options. */
export function layerMap(app, variant, at, more = {}) {
  const { heads } = app.shape;
  const share = (row, first, end) => variant.kept.layerSum(row, first, end) / ((end - first) * heads);
  return new HeatMap(app, {
    ...byLayer(app),
    ramp: () => variant.ramp,
    label: () => `${str(variant.label)}: share of KV heads that keep each entry, layers by positions`,
    sample: (row, first, end) => densityStep(share(row, first, end)),
    marks: () => variant,
    describe: (row, position, first, end) =>
      `layer ${row} · ${placeText(app, position, first, end)} · kept by ${variant.kept.headsKeeping(row, position)} of ${heads} KV heads${end - first > 1 ? ` · column ${percent(share(row, first, end))}` : ""}`,
    // The first click on a map chooses its variant and moves nothing.
    pick: (row, position) => (app.chosen === at ? app.pick(position, row) : app.choose(at)),
    ...more,
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
    pick: (row, position) => app.pick(position, row),
  });
}

export function headMap(app) {
  const kept = () => app.current().kept;
  return new HeatMap(app, {
    kind: "head",
    rows: () => app.shape.heads,
    ramp: () => app.current().ramp,
    label: () => `${str(app.current().label)}, layer ${app.layer}: entries each KV head keeps`,
    sample: (row, first, end) => densityStep(kept().headSum(app.layer, row, first, end) / (end - first)),
    hatched: () => !app.evictable.has(app.layer),
    marks: () => app.current(),
    describe: (row, position, first, end) =>
      `layer ${app.layer} · KV head ${row} · ${placeText(app, position, first, end)} · ${kept().keeps(app.layer, row, position) ? "kept" : "evicted"}`,
    pick: (_row, position) => app.pick(position),
  });
}
