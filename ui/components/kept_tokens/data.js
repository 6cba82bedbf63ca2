// Retained sets as the server packs them, and every count the views need. No DOM here.
//
// Bits: one row per (layer, KV head), each starting on a byte border, first position in the highest bit.

import { fetchOk, list, str } from "../../../assets/scripts/dom.js";

const POPCOUNT = Uint8Array.from({ length: 256 }, (_, byte) => byte.toString(2).replaceAll("0", "").length);

/** [first, end) of the positions that a variant never evicts, ascending and apart. */
export function alwaysKept(positions, { sinks = 0, window = 0, protected: spans = [] }) {
  const found = [];
  const places = [[0, sinks], [positions - window, positions], ...spans];
  for (const [from, to] of places.map(([a, b]) => [Math.max(a, 0), Math.min(b, positions)]).sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1);
    if (to <= from) continue;
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

export class KeptSet {
  constructor(bits, { layers, heads, positions, evictable }) {
    this.bits = bits;
    this.layers = layers;
    this.heads = heads;
    this.positions = positions;
    this.evictable = evictable;
    this.stride = Math.ceil(positions / 8);
    this.sums = [];
  }

  static bytes(layers, heads, positions) {
    return layers * heads * Math.ceil(positions / 8);
  }

  /** Entries that a layer keeps before each position, over all its heads; counted once. */
  sumsOf(layer) {
    if (this.sums[layer]) return this.sums[layer];
    const { bits, heads, stride } = this;
    const sums = new Uint32Array(stride * 8 + 1);
    for (let head = 0; head < heads; head += 1) {
      for (let at = 0; at < stride; at += 1) {
        const byte = bits[(layer * heads + head) * stride + at];
        for (let bit = 0; bit < 8; bit += 1) sums[at * 8 + bit + 1] += (byte >> (7 - bit)) & 1;
      }
    }
    for (let at = 1; at < sums.length; at += 1) sums[at] += sums[at - 1];
    this.sums[layer] = sums;
    return sums;
  }

  /** Entries kept in a layer at positions first..end-1, over all its heads. */
  layerSum(layer, first, end) {
    const sums = this.sumsOf(layer);
    return sums[end] - sums[first];
  }

  keeps(layer, head, position) {
    const byte = this.bits[(layer * this.heads + head) * this.stride + (position >> 3)];
    return ((byte >> (7 - (position & 7))) & 1) === 1;
  }

  headsKeeping(layer, position) {
    return this.layerSum(layer, position, position + 1);
  }

  /** Evictable (layer, head) slots that keep a position. */
  slotsKeeping(position) {
    return this.evictable.reduce((sum, layer) => sum + this.headsKeeping(layer, position), 0);
  }

  /** Positions first..end-1 that one head keeps. */
  headSum(layer, head, first, end) {
    const row = (layer * this.heads + head) * this.stride;
    let sum = 0;
    for (let at = first >> 3; at * 8 < end; at += 1) {
      let byte = this.bits[row + at];
      if (at * 8 < first) byte &= 0xff >> (first & 7);
      if (at * 8 + 8 > end) byte &= 0xff << (8 - (end & 7));
      sum += POPCOUNT[byte];
    }
    return sum;
  }

  /** Share of a layer's entries that is kept. */
  layerShare(layer) {
    return this.layerSum(layer, 0, this.positions) / (this.positions * this.heads);
  }

  /** Share of all evictable entries that is kept: what the budget comes to. */
  share() {
    return mean(this.evictable.map((layer) => this.layerShare(layer)));
  }

  /**
   * How well a span is still held, as `evidence` of ckv_core counts it: {slots, whole, mean, chance,
   * layers}; whole = slots that hold all of it, layers = {layer, kept, of, held, chance} of evictable
   * ones: entries of the span that its heads keep, of how many.
   * By chance a layer's entries beyond the protected ones lie anywhere else with equal odds.
   */
  evidence(first, end, marks = {}) {
    const { heads, positions } = this;
    const places = alwaysKept(positions, marks);
    const sum = (from, to) => places.reduce((all, each) => all + Math.max(0, Math.min(to, each[1]) - Math.max(from, each[0])), 0);
    const fixed = sum(0, positions);
    const inSpan = sum(first, end) / (end - first);
    const of = heads * (end - first);
    let whole = 0;
    const layers = this.evictable.map((layer) => {
      for (let head = 0; head < heads; head += 1) whole += Number(this.headSum(layer, head, first, end) === end - first);
      const kept = this.layerSum(layer, first, end);
      const spare = this.layerSum(layer, 0, positions) - heads * fixed;
      const chance = inSpan + ((1 - inSpan) * spare) / Math.max(heads * (positions - fixed), 1);
      return { layer, kept, of, held: kept / of, chance };
    });
    const [held, chance] = ["held", "chance"].map((name) => mean(layers.map((each) => each[name])));
    return { slots: layers.length * heads, whole, mean: held, chance, layers };
  }
}

/** Mean of shares; where no layer may evict, all is kept. */
const mean = (shares) => (shares.length ? shares.reduce((sum, each) => sum + each, 0) / shares.length : 1);

/** The prompt's tokens, and search in them. */
class Prompt {
  constructor(answer) {
    this.pieces = list(answer.pieces).map(str);
    this.context = list(answer.context).length === 2 ? answer.context : [0, this.pieces.length];
  }

  /** Lower-cased text and where each token starts in it; made at the first search. */
  index() {
    if (this.starts) return;
    const lower = this.pieces.map((piece) => piece.toLowerCase());
    this.starts = new Uint32Array(lower.length + 1);
    lower.forEach((piece, at) => {
      this.starts[at + 1] = this.starts[at] + piece.length;
    });
    this.lower = lower.join("");
  }

  /** Token spans in the first `positions` tokens that hold a text, whatever its spacing. */
  occurrences(text, positions) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return [];
    this.index();
    const body = this.lower.slice(0, this.starts[positions]);
    const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("\\s+");
    let token = 0; // matches ascend
    const tokenAt = (character) => {
      while (this.starts[token + 1] <= character) token += 1;
      return token;
    };
    return [...body.matchAll(new RegExp(pattern, "g"))].map(({ index, 0: { length } }) => [
      tokenAt(index),
      tokenAt(index + length - 1) + 1,
    ]);
  }
}

/** The kept sets of a run, each fetched once. */
export class KeptRun {
  constructor(value) {
    this.shape = { layers: value.layers, heads: value.kv_heads, positions: value.positions, evictable: list(value.evictable) };
    this.base = `${value.base}/${encodeURIComponent(value.slug)}`;
    this.sets = new Map();
    this.prompt = null;
  }

  async bytes(path, signal) {
    return (await fetchOk(`${this.base}/${path}`, signal)).arrayBuffer();
  }

  async fetchSet(variant, signal) {
    const { layers, heads, positions } = this.shape;
    const bits = new Uint8Array(await this.bytes(`${variant.index}/retained`, signal));
    const wanted = KeptSet.bytes(layers, heads, positions);
    if (bits.length !== wanted) throw new Error(`${variant.label} came as ${bits.length} bytes instead of ${wanted}`);
    const evicted = variant.entries ? new Uint32Array(await this.bytes(`${variant.index}/evicted`, signal)) : null;
    this.sets.set(variant.index, { stored: new KeptSet(bits, this.shape), evicted });
  }

  /** The prompt, and these variants with their sets: {prompt, variants, shape}. */
  async load(variants, signal) {
    const missing = variants.filter((each) => !this.sets.has(each.index));
    const prompt = async () => {
      this.prompt ??= new Prompt(await (await fetchOk(`${this.base}/prompt`, signal)).json());
    };
    await Promise.all([prompt(), ...missing.map((each) => this.fetchSet(each, signal))]);
    const shown = variants.map((each) => ({ ...each, ...this.sets.get(each.index) }));
    return { prompt: this.prompt, shape: this.shape, variants: shown.map((each) => ({ ...each, kept: each.stored })) };
  }
}

const views = new Set();
let preview = null;

/**
 * Show other kept sets in place of the stored ones, as a preview of other settings does.
 *
 * @param {Object<number, Uint8Array>?} sets by a variant's index the bits of its set, packed as
 *   `RetainedSet` packs them, of the run's own prompt and model; variants that are not named stay
 *   as they are stored. null shows all of them as stored again.
 *
 * Maps, text and evidence are drawn again in the next frame.
 */
export function replaceKept(sets) {
  preview = sets;
  for (const draw of views) draw(sets);
}

/** Call `draw` with what `replaceKept` is given, and now where it was given something. */
export function onReplaced(draw) {
  views.add(draw);
  if (preview) draw(preview);
}
