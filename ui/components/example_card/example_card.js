// The app's own example run: of each method what it kept, what it wrote, and whether that is right.

import { fetchOk, list, make, onTheme, setText, str, written } from "../../../assets/scripts/dom.js";
import { hueOf, marker, outcomeMark } from "../../../assets/scripts/marks.js";
import { KeptSet } from "../kept_tokens/data.js";

const AGAIN_MS = 1500;
const FAINT = 0.12; // of a column that one head keeps

/** A method's kept tokens as a strip: a row a layer, the stronger the more KV heads keep a place. */
function drawStrip(canvas, kept, color) {
  const { layers, heads, positions } = kept;
  if (!canvas.clientWidth) return;
  const columns = Math.min(positions, Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio)));
  Object.assign(canvas, { width: columns, height: layers });
  const pen = canvas.getContext("2d");
  pen.fillStyle = color;
  for (let column = 0; column < columns; column += 1) {
    const [first, end] = [column, column + 1].map((at) => Math.floor((at * positions) / columns));
    for (let layer = 0; layer < layers; layer += 1) {
      const share = kept.layerSum(layer, first, end) / (heads * (end - first));
      if (!share) continue;
      pen.globalAlpha = FAINT + (1 - FAINT) * share;
      pen.fillRect(column, layer, 1, 1);
    }
  }
  canvas.dataset.drawn = "1";
}

function methodRow(variant, shape) {
  const strip = make("canvas.ckv-strip", { role: "img", "aria-label": `Tokens that ${str(variant.label)} keeps` });
  const wrote = make("span.ckv-wrote");
  const outcome = make("span");
  let kept = null;
  const draw = () => kept && drawStrip(strip, kept, hueOf(variant.look));
  return {
    parts: [make("span.ckv-name", marker(variant.look), str(variant.label)), strip, wrote, outcome],
    draw,
    async load(url) {
      kept = new KeptSet(new Uint8Array(await (await fetchOk(`${url}/${variant.index}/retained`)).arrayBuffer()), shape);
      draw();
    },
    show(row) {
      wrote.replaceChildren(...written(row.wrote));
      outcome.replaceChildren(...(row.outcome ? [outcomeMark(row.outcome)] : []));
    },
  };
}

export default function mount({ root, element }) {
  const text = make("p.ckv-small", { role: "status" });
  const about = make("span.ckv-hint");
  const open = make("a.ckv-button.ckv-small", { text: "Open result", hidden: true });
  const table = make("div.ckv-example-rows", { hidden: true });
  const head = make("div.ckv-row.ckv-example-head", make("div", make("h3", { text: "Example result, made on this machine" }), about), open);
  const card = make("div.ckv-card", { hidden: true }, head, text, table);
  root.append(card);
  let rows = new Map();
  let slug = "";

  /** A row for each method, once it is known what they keep. */
  function lay(value) {
    const { layers, kv_heads: heads, positions, evictable } = value.kept;
    const shape = { layers, heads, positions, evictable };
    const url = `${value.kept.base}/${encodeURIComponent(value.slug)}`;
    rows = new Map(list(value.kept.variants).map((variant) => [variant.index, methodRow(variant, shape)]));
    const names = ["Method", "Kept tokens, start to end of the text", "Wrote", ""];
    table.replaceChildren(...names.map((name) => make("span.ckv-hint", { text: name })), ...[...rows.values()].flatMap((row) => row.parts));
    return Promise.all([...rows.values()].map((row) => row.load(url)));
  }

  async function look() {
    if (!root.isConnected) return;
    const value = await fetchOk("/example").then((answer) => answer.json());
    card.hidden = !value;
    if (!value) return;
    setText(about, str(value.about));
    setText(text, str(value.text));
    open.hidden = !value.slug || !value.done;
    open.href = `/run?id=${encodeURIComponent(str(value.slug))}`;
    if (value.slug !== slug) rows = new Map(); // the run gave way to another and was made again
    slug = value.slug;
    table.hidden = !value.kept;
    if (value.kept && !rows.size) await lay(value);
    for (const row of list(value.rows)) rows.get(row.index)?.show(row);
    if (value.done) element.dataset.done = "1";
    else setTimeout(retry, AGAIN_MS);
  }

  const retry = () =>
    look().catch(() => {
      card.hidden = true; // the example is no part of what the page is for
    });

  const redraw = () => rows.forEach((row) => row.draw());
  new ResizeObserver(redraw).observe(table);
  onTheme(root, redraw);
  element.dataset.ready = "1";
  retry();
}
