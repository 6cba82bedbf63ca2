// Retained sets as the server packs them, and every count the views need. No DOM here.
//
// Bits: one row per (layer, KV head), each starting on a byte border, first position in the
// highest bit. Counts are made once per variant, then any range costs a few additions.

import { list, str } from "../../../assets/scripts/dom.js";

const COARSE = 16; // positions per coarse block of the running sums
const POPCOUNT = Uint8Array.from({ length: 256 }, (_, byte) => {
  let ones = 0;
  for (let rest = byte; rest; rest &= rest - 1) ones += 1;
  return ones;
});

// One byte spread over eight byte lanes: two words of four lanes, first position first. Adding
// such words counts eight positions at once, as long as no lane passes 255 heads.
const LANES = (() => {
  const bytes = new Uint8Array(256 * 8);
  for (let byte = 0; byte < 256; byte += 1) {
    for (let bit = 0; bit < 8; bit += 1) bytes[byte * 8 + bit] = (byte >> (7 - bit)) & 1;
  }
  return new Uint32Array(bytes.buffer);
})();

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
    this.width = this.stride * 8;
    this.coarseWidth = Math.ceil(this.width / COARSE) + 1;
    this.counted = false;
  }

  static bytes(layers, heads, positions) {
    return layers * heads * Math.ceil(positions / 8);
  }

  /** Heads that keep each (layer, position), and running sums over positions. */
  count() {
    if (this.counted) return;
    this.counted = true;
    const { layers, heads, stride, width, bits } = this;
    this.counts = new Uint8Array(layers * width);
    const words = new Uint32Array(this.counts.buffer);
    for (let row = 0; row < layers * heads; row += 1) {
      let out = Math.floor(row / heads) * stride * 2;
      for (let at = row * stride; at < (row + 1) * stride; at += 1, out += 2) {
        const byte = bits[at];
        if (byte === 0) continue;
        words[out] += LANES[byte * 2];
        words[out + 1] += LANES[byte * 2 + 1];
      }
    }
    this.coarse = new Uint32Array(layers * this.coarseWidth);
    for (let layer = 0; layer < layers; layer += 1) this.sumUp(layer);
    this.slots = new Uint32Array(this.positions);
    for (const layer of this.evictable) {
      for (let at = 0; at < this.positions; at += 1) this.slots[at] += this.counts[layer * width + at];
    }
  }

  sumUp(layer) {
    const from = layer * this.width;
    const to = layer * this.coarseWidth;
    let sum = 0;
    for (let at = 0; at < this.width; at += 1) {
      if (at % COARSE === 0) this.coarse[to + at / COARSE] = sum;
      sum += this.counts[from + at];
    }
    this.coarse[to + this.coarseWidth - 1] = sum;
  }

  /** Sum of `counts` of one layer before a position. */
  before(layer, position) {
    const block = Math.floor(position / COARSE);
    let sum = this.coarse[layer * this.coarseWidth + block];
    const row = layer * this.width;
    for (let at = block * COARSE; at < position; at += 1) sum += this.counts[row + at];
    return sum;
  }

  /** Entries kept in a layer at positions first..end-1, over all its heads. */
  layerSum(layer, first, end) {
    this.count();
    return this.before(layer, end) - this.before(layer, first);
  }

  keeps(layer, head, position) {
    const byte = this.bits[(layer * this.heads + head) * this.stride + (position >> 3)];
    return ((byte >> (7 - (position & 7))) & 1) === 1;
  }

  headsKeeping(layer, position) {
    this.count();
    return this.counts[layer * this.width + position];
  }

  /** Evictable (layer, head) slots that keep a position. */
  slotsKeeping(position) {
    this.count();
    return this.slots[position];
  }

  /** Positions first..end-1 that one head keeps. */
  headSum(layer, head, first, end) {
    if (end <= first) return 0;
    const row = (layer * this.heads + head) * this.stride;
    const low = first >> 3;
    const high = (end - 1) >> 3;
    const lowMask = 0xff >> (first & 7);
    const highMask = (0xff << (7 - ((end - 1) & 7))) & 0xff;
    if (low === high) return POPCOUNT[this.bits[row + low] & lowMask & highMask];
    let sum = POPCOUNT[this.bits[row + low] & lowMask] + POPCOUNT[this.bits[row + high] & highMask];
    for (let at = low + 1; at < high; at += 1) sum += POPCOUNT[this.bits[row + at]];
    return sum;
  }

  /** Share of a layer's entries that is kept. */
  layerShare(layer) {
    return this.layerSum(layer, 0, this.positions) / (this.positions * this.heads);
  }

  /** Share of all evictable entries that is kept: what the budget comes to. */
  share() {
    if (this.evictable.length === 0) return 1;
    let sum = 0;
    for (const layer of this.evictable) sum += this.layerShare(layer);
    return sum / this.evictable.length;
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
    let whole = 0;
    const layers = this.evictable.map((layer) => {
      let kept = 0;
      for (let head = 0; head < heads; head += 1) {
        const held = this.headSum(layer, head, first, end);
        kept += held;
        if (held === end - first) whole += 1;
      }
      const spare = this.layerSum(layer, 0, positions) - heads * fixed;
      const chance = inSpan + ((1 - inSpan) * spare) / Math.max(heads * (positions - fixed), 1);
      const of = heads * (end - first);
      return { layer, kept, of, held: kept / of, chance };
    });
    const mean = (name) => (layers.length ? layers.reduce((sum, each) => sum + each[name], 0) / layers.length : 1);
    return { slots: layers.length * heads, whole, mean: mean("held"), chance: mean("chance"), layers };
  }
}

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
    return [...body.matchAll(new RegExp(pattern, "g"))].map((match) => [
      this.tokenAt(match.index),
      this.tokenAt(match.index + match[0].length - 1) + 1,
    ]);
  }

  /** Token that holds a character of the lower-cased text. */
  tokenAt(character) {
    let low = 0;
    let high = this.pieces.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= character) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

async function fetchOk(url, signal) {
  const answer = await fetch(url, { signal });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer;
}

async function fetchKept(value, variant, shape, signal) {
  const url = `${value.base}/${encodeURIComponent(value.slug)}/${variant.index}/retained`;
  const bits = new Uint8Array(await (await fetchOk(url, signal)).arrayBuffer());
  const wanted = KeptSet.bytes(shape.layers, shape.heads, shape.positions);
  if (bits.length !== wanted) throw new Error(`${variant.label} came as ${bits.length} bytes instead of ${wanted}`);
  const kept = new KeptSet(bits, shape);
  if (!variant.entries) return { ...variant, kept };
  const more = await fetchOk(url.replace(/retained$/, "evicted"), signal);
  return { ...variant, kept, evicted: new Uint32Array(await more.arrayBuffer()) };
}

/** Fetch the prompt and every variant's bits: {prompt, variants, shape}. */
export async function fetchRun(value, signal) {
  const shape = { layers: value.layers, heads: value.kv_heads, positions: value.positions, evictable: list(value.evictable) };
  const promptUrl = `${value.base}/${encodeURIComponent(value.slug)}/prompt`;
  const [prompt, ...variants] = await Promise.all([
    fetchOk(promptUrl, signal).then((answer) => answer.json()),
    ...list(value.variants).map((variant) => fetchKept(value, variant, shape, signal)),
  ]);
  return { prompt: new Prompt(prompt), variants, shape };
}
