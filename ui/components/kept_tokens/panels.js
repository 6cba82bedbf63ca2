// Tables and grids beside the maps: evidence of a span, one token's slots, share per layer.

import { byTouch, downloadCsv, make, percent, SVG, saveFile, scroller, shape, specParts, str, whole } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { niceStep } from "./map.js";

function variantCell(variant) {
  return make("th", { scope: "row" }, make("span.ckv-name", marker(variant.look), make("span", ...specParts(variant.label))));
}
function headRow(...titles) {
  return make("thead", [
    make("tr", [
      titles.map(([text, title], at) => make("th", { scope: "col", text, title: title ?? null, class: at ? "ckv-right" : null })),
    ]),
  ]);
}

const numberCell = (text) => make("td.ckv-num.ckv-right", { text });

/** Kept share per layer as bars, the share expected at random as a tick on each; layers left to right. */
function layerBars(variant, found) {
  const [width, height] = [Math.max(40, found.layers.length * 4), 26];
  const svg = shape("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": `${str(variant.label)}, kept by layer: ${found.layers.map((each) => `${each.layer}: ${percent(each.held)}`).join(", ")}`,
  });
  const step = width / Math.max(1, found.layers.length);
  found.layers.forEach((each, at) => {
    const bar = shape("rect", {
      x: at * step,
      width: Math.max(1, step - 1),
      fill: str(variant.look.color),
      y: height - each.held * height,
      height: each.held * height,
    });
    const title = shape("title", {});
    title.textContent = `layer ${each.layer}: kept ${percent(each.held)}, expected at random ${percent(each.chance)}`;
    bar.append(title);
    svg.append(bar, shape("rect", { x: at * step, width: step, y: height - each.chance * height - 1, height: 1, class: "ckv-chance" }));
  });
  return svg;
}

/** Bring the first difference in the card of a variant's text into view. */
function showDifference(card) {
  card.querySelector(".ckv-diff").scrollIntoView({ block: "center" });
  card.querySelector(".ckv-text").focus({ preventScroll: true });
}

/** Where a variant's text leaves the full cache's; the way there where the text is on the page. */
function divergence(variant) {
  if (!Number.isInteger(variant.first_difference)) return make("span", variant.finished ? "none" : "–");
  const token = `token ${variant.first_difference + 1}`;
  const card = document.querySelector(`[data-component="generations"] .ckv-card[data-variant="${Number(variant.index)}"]`);
  if (!card) return make("span", { text: token });
  const title = `Go to ${token} of ${str(variant.label)}, the first that differs`;
  return make("button.ckv-button.ckv-quiet", { text: token, title, "aria-label": title, onclick: () => showDifference(card) });
}

/** The evidence of a span by layer, unrounded. */
function saveEvidence(app, first, end) {
  const lines = [["variant", "spec", "layer", "slots_held", "slots", "share", "share_by_chance"]];
  for (const variant of app.variants) {
    for (const { layer, kept, of, held, chance } of variant.kept.evidence(first, end, variant).layers) {
      lines.push([variant.index, variant.spec, layer, kept, of, held, chance]);
    }
  }
  downloadCsv(lines, `evidence-${first}-${end - 1}.csv`);
}

/** The bars of all variants as one picture in the page's colours. */
function evidencePicture(app, first, end, { backgroundColor: ground, color }) {
  const [width, left, row] = [720, 16, 76];
  const height = 48 + row * app.variants.length;
  const write = (y, size, text) => {
    const line = shape("text", { x: left, y, fill: color, "font-size": size, "font-family": "system-ui, sans-serif" });
    line.textContent = text;
    return line;
  };
  const picture = shape("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  picture.append(
    shape("rect", { width, height, fill: ground }),
    write(26, 14, `Share of tokens ${first}–${end - 1} kept, by evictable layer; line: expected at random`),
  );
  app.variants.forEach((variant, at) => {
    const found = variant.kept.evidence(first, end, variant);
    const bars = layerBars(variant, found);
    const [top, box] = [48 + at * row, { x: left, width: width - 2 * left, height: 44, preserveAspectRatio: "none" }];
    Object.entries({ ...box, y: top + 20 }).forEach(([name, value]) => bars.setAttribute(name, value));
    bars.querySelectorAll(".ckv-chance").forEach((line) => line.setAttribute("fill", color));
    picture.append(
      write(top + 14, 12, `${str(variant.label)}: ${percent(found.mean)}`),
      bars,
      shape("rect", { x: left, y: top + 64, width: width - 2 * left, height: 1, fill: color, opacity: 0.4 }),
    );
  });
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
    const canvas = make("canvas", { width: String(2 * width), height: String(2 * height) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    picture = canvas.toDataURL("image/png");
  }
  saveFile(picture, `evidence-${first}-${end - 1}.${format}`);
}

/** Who still keeps a span: the part of it inside the compressed prompt is judged. */
function evidenceRow(variant, first, end) {
  const found = variant.kept.evidence(first, end, variant);
  const times = found.chance > 0 ? `${(found.mean / found.chance).toFixed(found.mean / found.chance < 10 ? 2 : 0)}×` : "–";
  return make("tr", { "data-variant": String(variant.index) }, [
    variantCell(variant),
    numberCell(percent(found.mean)),
    numberCell(`${whole(found.whole)} / ${whole(found.slots)}`),
    numberCell(percent(found.chance)),
    numberCell(times),
    make("td", layerBars(variant, found)),
    make("td.ckv-num.ckv-right", divergence(variant)),
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
  const place = app.answerAt === undefined ? `${count === 1 ? "1 place" : `${whole(count)} places`}` : `${app.answerAt + 1} of ${count}`;
  return make("button.ckv-button", { text: `Find the reference answer (${place})`, onclick: go });
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
  const words = app.prompt.pieces
    .slice(first, Math.min(end, first + 24))
    .join("")
    .trim();
  const judged = Math.min(end, app.positions);
  const line = make("p.ckv-quote", make("q", { dir: "auto", text: words + (end - first > 24 ? " …" : "") }));
  const where = make("p.ckv-subdued.ckv-num", `tokens ${whole(first)}–${whole(end - 1)} (${whole(end - first)})`);
  const clear = make("button.ckv-button.ckv-quiet", { text: "Clear", onclick: () => app.clear() });
  const save = make("button.ckv-button.ckv-quiet", {
    text: "CSV",
    "aria-label": "Evidence by layer as CSV",
    title: "Slots of the span kept, by variant and layer",
    onclick: () => saveEvidence(app, first, judged),
  });
  const pictures = ["png", "svg"].map((format) =>
    make("button.ckv-button.ckv-quiet", {
      text: format.toUpperCase(),
      "aria-label": `Evidence by layer as ${format.toUpperCase()}`,
      onclick: () => saveEvidencePicture(app, first, judged, format, getComputedStyle(box)),
    }),
  );
  const files = judged > first ? [...pictures, save] : [];
  const head = make("div.ckv-panel-head", title, make("div.ckv-buttons", ...files, clear));
  if (judged <= first) {
    show(head, answer, line, where, make("p.ckv-hint", "Read after eviction: every variant keeps all of it."));
    return;
  }
  const table = make("table.ckv-table.ckv-tight", [
    make("caption.ckv-offscreen", "Share of the selected span that each variant keeps"),
    headRow(
      ["Variant"],
      ["kept", "Mean share of (layer, KV head) slots that keep a token of the span"],
      ["heads keeping all", "(layer, KV head) pairs that keep every token of the span"],
      ["expected at random", "Share that this budget would keep if all but the protected entries lay anywhere with equal odds"],
      ["against random", "Kept share / the share expected at random"],
      ["by layer", "Kept share of each evictable layer; the line is the share expected at random"],
      ["diverges", "First generated token that differs from the full cache's"],
    ),
    make("tbody", ...app.variants.map((variant) => evidenceRow(variant, first, judged))),
  ]);
  show(head, answer, line, where, scroller("Evidence table", table));
}

/** Layer x head squares of one token: filled is kept, hollow is evicted. */
function slotGrid(app, variant) {
  const { layers, heads } = app.shape;
  const [cell, left, top] = [9, 22, 2];
  const ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas.ckv-grid-canvas", { role: "img" });
  const [width, height] = [left + heads * cell + 1, top + layers * cell + 1];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = app.ink.font;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
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
  const kept = variant.kept.slotsKeeping(app.token);
  canvas.setAttribute(
    "aria-label",
    `${str(variant.label)} keeps this token in ${kept} of ${app.slotCount()} slots: layers down, KV heads across`,
  );
  return make("figure.ckv-slots", [
    make("figcaption", [
      make("span.ckv-name", marker(variant.look), make("span", str(variant.label))),
      make("span.ckv-num.ckv-subdued", `${kept} / ${app.slotCount()}`),
    ]),
    canvas,
  ]);
}

export function drawToken(app, box) {
  const title = make("h3", "Token");
  if (app.token === null) {
    box.replaceChildren(
      title,
      make(
        "p.ckv-hint",
        `${byTouch("Tap", "Click")} a token in the text or a cell of a map to see its layer × KV head grid in every variant.`,
      ),
    );
    return;
  }
  const extend = make("button.ckv-button.ckv-quiet", {
    "aria-pressed": String(app.extending),
    text: "Select from here",
    title: "The next token you choose ends the span",
    onclick: () => {
      app.extending = !app.extending;
      app.redraw("panels");
    },
  });
  const head = make("div.ckv-panel-head", title, extend);
  const name = make("p.ckv-quote", [
    make("q", { dir: "auto", text: app.prompt.pieces[app.token] }),
    ` token ${whole(app.token)}, layer ${app.layer} framed`,
  ]);
  if (app.token >= app.positions) {
    box.replaceChildren(head, name, make("p.ckv-hint", "Read after eviction: every variant keeps it."));
    return;
  }
  box.replaceChildren(
    head,
    name,
    make("div.ckv-slot-row", ...app.variants.map((variant) => slotGrid(app, variant))),
    make("p.ckv-hint", "Layers down, KV heads across; filled: kept, hollow: evicted."),
  );
}

/** The maps in words: kept share per layer and variant. */
export function shareTable(app) {
  const table = make("table.ckv-table.ckv-tight", [
    make("caption.ckv-offscreen", "Share of entries kept, per layer and variant"),
    headRow(["Layer"], ...app.variants.map((variant) => [str(variant.label)])),
  ]);
  const body = make("tbody");
  for (let layer = 0; layer < app.shape.layers; layer += 1) {
    body.append(
      make("tr", [
        make("th", { scope: "row", text: app.evictable.has(layer) ? String(layer) : `${layer} (not evicted)` }),
        ...app.variants.map((variant) => numberCell(percent(variant.kept.layerShare(layer)))),
      ]),
    );
  }
  table.append(body);
  return scroller("Kept share per layer", table);
}
