// Further views of the kept sets: one token's slots, and shares per layer in words.

import { make, percent, scroller, str, tableHead } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { niceStep } from "./map.js";

/** Layer x head squares of one token: filled is kept, hollow is evicted. */
function slotGrid(app, variant) {
  const { layers, heads } = app.shape;
  const [cell, left, top] = [9, 22, 2];
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [left + heads * cell + 1, top + layers * cell + 1];
  const kept = variant.kept.slotsKeeping(app.span[0]);
  const canvas = make("canvas", {
    role: "img",
    width: width * ratio,
    height: height * ratio,
    style: `width: ${width}px; height: ${height}px`,
    "aria-label": `${str(variant.label)} keeps this token in ${kept} of ${app.slotCount()} heads: layers down, KV heads across`,
  });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  Object.assign(pen, { font: app.ink.font, textAlign: "right", textBaseline: "middle" });
  const step = niceStep(layers, (layers * cell) / 26);
  for (let layer = 0; layer < layers; layer += 1) {
    pen.fillStyle = app.ink.subdued;
    if (layer % step === 0) pen.fillText(String(layer), left - 4, top + (layer + 0.5) * cell);
    pen.fillStyle = app.evictable.has(layer) ? app.ink.text : app.ink.subdued;
    pen.strokeStyle = app.ink.line;
    for (let head = 0; head < heads; head += 1) {
      const [x, y] = [left + head * cell, top + layer * cell];
      if (variant.kept.keeps(layer, head, app.span[0])) pen.fillRect(x, y, cell - 1, cell - 1);
      else pen.strokeRect(x + 0.5, y + 0.5, cell - 2, cell - 2);
    }
    if (layer === app.layer) {
      pen.strokeStyle = app.ink.text;
      pen.strokeRect(left - 1.5, top + layer * cell - 0.5, heads * cell + 1, cell);
    }
  }
  return make("figure.ckv-slots.ckv-small", [
    make("figcaption", [
      make("span.ckv-name", marker(variant.look), make("span", str(variant.label))),
      make("span.ckv-num.ckv-subdued", `${kept} / ${app.slotCount()}`),
    ]),
    canvas,
  ]);
}

/** The first token of the span in every slot of every variant. */
export function drawToken(app, box) {
  const judged = app.judged();
  const title = make("h3", judged ? app.tokenName(judged[0]) : "One token");
  const hint = make("p.ckv-hint", {
    text: judged
      ? `Layers down, KV heads across, layer ${app.layer} framed; filled: kept, hollow: evicted.`
      : "Choose a token of the compressed prompt to see in which layers and KV heads each method keeps it.",
  });
  const grids = judged ? [make("div.ckv-row.ckv-slot-row", ...app.variants.map((variant) => slotGrid(app, variant)))] : [];
  box.replaceChildren(title, hint, ...grids);
}

/** What `share(variant, layer)` is of each, in words. */
export function layerTable(app, caption, share) {
  const rows = Array.from({ length: app.shape.layers }, (_, layer) =>
    make("tr", [
      make("th", { scope: "row", text: app.evictable.has(layer) ? String(layer) : `${layer} (not evicted)` }),
      ...app.variants.map((variant) => make("td.ckv-num.ckv-right", percent(share(variant, layer)))),
    ]),
  );
  const heads = app.variants.map((variant) => ({ text: str(variant.label), class: "ckv-right" }));
  return scroller(caption, [
    make("table.ckv-table.ckv-tight", [make("caption.ckv-offscreen", caption), tableHead("Layer", ...heads), make("tbody", rows)]),
  ]);
}
