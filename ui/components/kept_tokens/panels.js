// Tables and grids beside the maps: evidence of a span, one token's slots, share per layer.

import {
  button,
  byTouch,
  downloadCsv,
  make,
  percent,
  quietButton,
  SVG,
  saveFile,
  scroller,
  shape,
  specParts,
  str,
  tableHead,
  whole,
} from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { niceStep } from "./map.js";

/** Heads of the evidence table, each with what it means. */
const EVIDENCE = Object.entries({
  kept: "Mean share of (layer, KV head) slots that keep a token of the span",
  "heads keeping all": "(layer, KV head) pairs that keep every token of the span",
  "expected at random": "Share that this budget would keep if all but the protected entries lay anywhere with equal odds",
  "against random": "Kept share / the share expected at random",
  "by layer": "Kept share of each evictable layer; the line is the share expected at random",
  diverges: "First generated token that differs from the full cache's",
});

const numberCell = (content) => make("td.ckv-num.ckv-right", content);

/** A table of a row head and numbers, which scrolls sideways. */
function table(name, caption, heads, rows) {
  const [first, ...others] = heads.map((head) => (typeof head === "string" ? { text: head } : head));
  return scroller(name, [
    make("table.ckv-table.ckv-tight", [
      make("caption.ckv-offscreen", caption),
      tableHead(first, ...others.map((head) => ({ class: "ckv-right", ...head }))),
      make("tbody", rows),
    ]),
  ]);
}

/** Kept share per layer as bars, the share expected at random as a tick on each; layers left to right. */
function layerBars(variant, found) {
  const [width, height] = [Math.max(40, found.layers.length * 4), 26];
  const step = width / Math.max(1, found.layers.length);
  const bars = found.layers.flatMap((each, at) => {
    const title = `layer ${each.layer}: kept ${percent(each.held)}, expected at random ${percent(each.chance)}`;
    const size = { x: at * step, width: Math.max(1, step - 1), y: height - each.held * height, height: each.held * height };
    return [
      shape("rect", { ...size, fill: str(variant.look.color) }, shape("title", {}, title)),
      shape("rect", { x: at * step, width: step, y: height - each.chance * height - 1, height: 1, class: "ckv-chance" }),
    ];
  });
  const label = `${str(variant.label)}, kept by layer: ${found.layers.map((each) => `${each.layer}: ${percent(each.held)}`).join(", ")}`;
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...bars);
}

/** Bring the first difference in the card of a variant's text into view. */
function showDifference(card) {
  card.querySelector(".ckv-diff").scrollIntoView({ block: "center" });
  card.querySelector(".ckv-text").focus({ preventScroll: true });
}

/** Where a variant's text leaves the full cache's; the way there where the text is on the page. */
function divergence(variant) {
  if (!Number.isInteger(variant.first_difference)) return variant.finished ? "none" : "–";
  const token = `token ${variant.first_difference + 1}`;
  const card = document.querySelector(`[data-component="generations"] .ckv-card[data-variant="${Number(variant.index)}"]`);
  if (!card) return token;
  const title = `Go to ${token} of ${str(variant.label)}, the first that differs`;
  return quietButton(token, () => showDifference(card), { title, "aria-label": title });
}

/** The evidence of a span by layer, unrounded. */
function saveEvidence(app, first, end) {
  const lines = app.variants.flatMap((variant) =>
    variant.kept
      .evidence(first, end, variant)
      .layers.map(({ layer, kept, of, held, chance }) => [variant.index, variant.spec, layer, kept, of, held, chance]),
  );
  const head = ["variant", "spec", "layer", "slots_held", "slots", "share", "share_by_chance"];
  downloadCsv([head, ...lines], `evidence-${first}-${end - 1}.csv`);
}

/** The bars of all variants as one picture in the page's colours. */
function evidencePicture(app, first, end, { backgroundColor: ground, color }) {
  const [width, left, row] = [720, 16, 76];
  const height = 48 + row * app.variants.length;
  const inner = width - 2 * left;
  const write = (y, size, text) =>
    shape("text", { x: left, y, fill: color, "font-size": size, "font-family": "system-ui, sans-serif" }, text);
  const rows = app.variants.flatMap((variant, at) => {
    const found = variant.kept.evidence(first, end, variant);
    const bars = layerBars(variant, found);
    const top = 48 + at * row;
    const box = { x: left, y: top + 20, width: inner, height: 44, preserveAspectRatio: "none" };
    Object.entries(box).forEach(([name, value]) => bars.setAttribute(name, value));
    bars.querySelectorAll(".ckv-chance").forEach((line) => line.setAttribute("fill", color));
    const line = shape("rect", { x: left, y: top + 64, width: inner, height: 1, fill: color, opacity: 0.4 });
    return [write(top + 14, 12, `${str(variant.label)}: ${percent(found.mean)}`), bars, line];
  });
  const title = write(26, 14, `Share of tokens ${first}–${end - 1} kept, by evictable layer; line: expected at random`);
  const size = { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` };
  const picture = shape("svg", size, shape("rect", { width, height, fill: ground }), title, ...rows);
  return { text: new XMLSerializer().serializeToString(picture), width, height };
}

/** The evidence of a span by layer as a picture. */
async function saveEvidencePicture(app, first, end, format, look) {
  const { text, width, height } = evidencePicture(app, first, end, look);
  let picture = new Blob([text], { type: "image/svg+xml" });
  if (format === "png") {
    const image = make("img", { src: URL.createObjectURL(picture) });
    await image.decode();
    URL.revokeObjectURL(image.src);
    const canvas = make("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    picture = canvas.toDataURL("image/png");
  }
  saveFile(picture, `evidence-${first}-${end - 1}.${format}`);
}

/** Who still keeps a span: the part of it inside the compressed prompt is judged. */
function evidenceRow(variant, first, end) {
  const found = variant.kept.evidence(first, end, variant);
  const times = found.chance > 0 ? `${(found.mean / found.chance).toFixed(found.mean / found.chance < 10 ? 2 : 0)}×` : "–";
  const name = make("span.ckv-name", marker(variant.look), make("span", ...specParts(variant.label)));
  return make("tr", { "data-variant": String(variant.index) }, [
    make("th", { scope: "row" }, name),
    numberCell(percent(found.mean)),
    numberCell(`${whole(found.whole)} / ${whole(found.slots)}`),
    numberCell(percent(found.chance)),
    numberCell(times),
    make("td", layerBars(variant, found)),
    numberCell(divergence(variant)),
  ]);
}

/** Step through the places where the reference answer stands in the compressed prompt. */
function answerButton(app) {
  if (!app.answer.trim()) return null;
  const spans = app.answerSpans();
  const count = spans.length;
  if (count === 0) return make("p.ckv-hint", "The reference answer does not occur in the compressed prompt.");
  const go = () => {
    app.answerAt = ((app.answerAt ?? -1) + 1) % count;
    app.selectSpan(...spans[app.answerAt]);
    app.text.reveal(spans[app.answerAt][0]);
  };
  const places = count === 1 ? "1 place" : `${whole(count)} places`;
  const place = app.answerAt === undefined ? places : `${app.answerAt + 1} of ${count}`;
  return button(`Find the reference answer (${place})`, go);
}

export function drawEvidence(app, box) {
  const title = make("h3", "Evidence");
  const answer = answerButton(app);
  const show = (...parts) => box.replaceChildren(...parts.filter(Boolean));
  if (!app.span) {
    const way = byTouch(
      "Search, or tap a token, then “Select from here”, then another",
      "Search, drag over the text, or click one token and Shift-click another",
    );
    show(title, answer, make("p.ckv-hint", `${way}: then see which variants still keep that span.`));
    return;
  }
  const [first, end] = app.span;
  const judged = Math.min(end, app.positions);
  const shown = app.prompt.pieces.slice(first, Math.min(end, first + 24));
  const words = shown.join("").trim();
  const quote = make("p.ckv-quote", make("q", { dir: "auto", text: words + (end - first > 24 ? " …" : "") }));
  const where = make("p.ckv-subdued.ckv-num", `tokens ${whole(first)}–${whole(end - 1)} (${whole(end - first)})`);
  const saves = {
    PNG: () => saveEvidencePicture(app, first, judged, "png", getComputedStyle(box)),
    SVG: () => saveEvidencePicture(app, first, judged, "svg", getComputedStyle(box)),
    CSV: () => saveEvidence(app, first, judged),
  };
  const files = Object.entries(saves).map(([kind, save]) => quietButton(kind, save, { "aria-label": `Evidence by layer as ${kind}` }));
  const isEvicted = judged > first;
  const clear = quietButton("Clear", () => app.clear());
  const head = make("div.ckv-row.ckv-panel-head", title, make("div.ckv-row.ckv-buttons", isEvicted ? files : null, clear));
  const heads = ["Variant", ...EVIDENCE.map(([text, title]) => ({ text, title }))];
  const rows = () => app.variants.map((variant) => evidenceRow(variant, first, judged));
  const found = isEvicted
    ? table("Evidence table", "Share of the selected span that each variant keeps", heads, rows())
    : make("p.ckv-hint", "Read after eviction: every variant keeps all of it.");
  show(head, answer, quote, where, found);
}

/** Layer x head squares of one token: filled is kept, hollow is evicted. */
function slotGrid(app, variant) {
  const { layers, heads } = app.shape;
  const [cell, left, top] = [9, 22, 2];
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [left + heads * cell + 1, top + layers * cell + 1];
  const kept = variant.kept.slotsKeeping(app.token);
  const canvas = make("canvas", {
    role: "img",
    width: width * ratio,
    height: height * ratio,
    style: `width: ${width}px; height: ${height}px`,
    "aria-label": `${str(variant.label)} keeps this token in ${kept} of ${app.slotCount()} slots: layers down, KV heads across`,
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
      if (variant.kept.keeps(layer, head, app.token)) pen.fillRect(x, y, cell - 1, cell - 1);
      else pen.strokeRect(x + 0.5, y + 0.5, cell - 2, cell - 2);
    }
    if (layer === app.layer) {
      pen.strokeStyle = app.ink.pick;
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

export function drawToken(app, box) {
  const title = make("h3", "Token");
  const hint = (text) => make("p.ckv-hint", text);
  if (app.token === null) {
    const way = byTouch("Tap", "Click");
    box.replaceChildren(title, hint(`${way} a token in the text or a cell of a map to see its layer × KV head grid in every variant.`));
    return;
  }
  const toggle = () => {
    app.extending = !app.extending;
    app.redraw("panels");
  };
  const extend = quietButton("Select from here", toggle, {
    "aria-pressed": String(app.extending),
    title: "The next token you choose ends the span",
  });
  const name = make("p.ckv-quote", [
    make("q", { dir: "auto", text: app.prompt.pieces[app.token] }),
    ` token ${whole(app.token)}, layer ${app.layer} framed`,
  ]);
  const found =
    app.token >= app.positions
      ? [hint("Read after eviction: every variant keeps it.")]
      : [
          make("div.ckv-row.ckv-slot-row", ...app.variants.map((variant) => slotGrid(app, variant))),
          hint("Layers down, KV heads across; filled: kept, hollow: evicted."),
        ];
  box.replaceChildren(make("div.ckv-row.ckv-panel-head", title, extend), name, ...found);
}

/** The maps in words: kept share per layer and variant. */
export function shareTable(app) {
  const rows = Array.from({ length: app.shape.layers }, (_, layer) =>
    make("tr", [
      make("th", { scope: "row", text: app.evictable.has(layer) ? String(layer) : `${layer} (not evicted)` }),
      ...app.variants.map((variant) => numberCell(percent(variant.kept.layerShare(layer)))),
    ]),
  );
  const heads = ["Layer", ...app.variants.map((variant) => str(variant.label))];
  return table("Kept share per layer", "Share of entries kept, per layer and variant", heads, rows);
}
