// Tables and grids beside the maps: evidence of a span, one token's slots, share per layer.

function variantCell(variant) {
  return make("th", { scope: "row" }, make("span", { class: "ckv-name" }, marker(variant.index), make("span", { text: str(variant.label) })));
}

function headRow(...titles) {
  return make("thead", {}, make("tr", {}, ...titles.map(([text, title], at) =>
    make("th", { scope: "col", text, title: title ?? null, class: at ? "ckv-right" : null }))));
}

const numberCell = (text) => make("td", { class: "ckv-num ckv-right", text });

/** Who still holds a span: the part of it inside the compressed prompt is judged. */
function evidenceRow(variant, first, end) {
  const { slots, whole: all, mean } = variant.kept.evidence(first, end);
  const share = variant.kept.share();
  const times = share > 0 ? `${(mean / share).toFixed(mean / share < 10 ? 2 : 0)}×` : "–";
  return make("tr", { "data-variant": String(variant.index) }, variantCell(variant),
    numberCell(percent(mean)), numberCell(`${whole(all)} / ${whole(slots)}`),
    numberCell(percent(share)), numberCell(times));
}

function drawEvidence(app, box) {
  const title = make("h3", { text: "Evidence" });
  if (!app.span) {
    box.replaceChildren(title, make("p", { class: "ckv-hint", text: "Search, drag over the text, or click one token and Shift-click another: then see which variants still hold that span." }));
    return;
  }
  const [first, end] = app.span;
  const words = app.prompt.pieces.slice(first, Math.min(end, first + 24)).join("").trim();
  const judged = Math.min(end, app.positions);
  const line = make("p", { class: "ckv-quote" }, make("q", { text: words + (end - first > 24 ? " …" : "") }));
  const where = make("p", { class: "ckv-subdued ckv-num", text: `tokens ${whole(first)}–${whole(end - 1)} (${whole(end - first)})` });
  const clear = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Clear", onclick: () => app.clear() });
  const head = make("div", { class: "ckv-panel-head" }, title, clear);
  if (judged <= first) {
    box.replaceChildren(head, line, where, make("p", { class: "ckv-hint", text: "Read after eviction: every variant keeps all of it." }));
    return;
  }
  const table = make("table", { class: "ckv-table ckv-tight" },
    make("caption", { class: "ckv-offscreen", text: "Share of the selected span that each variant holds" }),
    headRow(["Variant"], ["held", "Mean share of (layer, KV head) slots that keep a token of the span"],
      ["whole", "Slots that keep every token of the span"], ["average", "Share of all evictable entries this variant keeps"],
      ["ratio", "Held share against the average share"]),
    make("tbody", {}, ...app.variants.map((variant) => evidenceRow(variant, first, judged))));
  box.replaceChildren(head, line, where, make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": "Evidence table" }, table));
}

/** Layer x head squares of one token: filled is kept, hollow is evicted. */
function slotGrid(app, variant) {
  const { layers, heads } = app.shape;
  const [cell, left, top] = [9, 22, 2];
  const ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas", { role: "img", class: "ckv-grid-canvas" });
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
  canvas.setAttribute("aria-label", `${str(variant.label)} keeps this token in ${kept} of ${app.slotCount()} slots: layers down, KV heads across`);
  return make("figure", { class: "ckv-slots" },
    make("figcaption", {}, make("span", { class: "ckv-name" }, marker(variant.index), make("span", { text: str(variant.label) })),
      make("span", { class: "ckv-num ckv-subdued", text: `${kept} / ${app.slotCount()}` })),
    canvas);
}

function drawToken(app, box) {
  const title = make("h3", { text: "Token" });
  if (app.token === null) {
    box.replaceChildren(title, make("p", { class: "ckv-hint", text: "Click a token in the text or a cell of a map to see its layer × KV head grid in every variant." }));
    return;
  }
  const extend = make("button", {
    type: "button", class: "ckv-button ckv-quiet", "aria-pressed": String(app.extending),
    text: "Select from here", title: "The next token you click ends the span",
    onclick: () => { app.extending = !app.extending; app.redraw("panels"); },
  });
  const head = make("div", { class: "ckv-panel-head" }, title, extend);
  const name = make("p", { class: "ckv-quote" }, make("q", { text: app.prompt.pieces[app.token] }), ` token ${whole(app.token)}, layer ${app.layer} framed`);
  if (app.token >= app.positions) {
    box.replaceChildren(head, name, make("p", { class: "ckv-hint", text: "Read after eviction: every variant keeps it." }));
    return;
  }
  box.replaceChildren(head, name,
    make("div", { class: "ckv-slot-row" }, ...app.variants.map((variant) => slotGrid(app, variant))),
    make("p", { class: "ckv-hint", text: "Layers down, KV heads across; filled: kept, hollow: evicted." }));
}

/** The maps in words: kept share per layer and variant. */
function shareTable(app) {
  const table = make("table", { class: "ckv-table ckv-tight" },
    make("caption", { class: "ckv-offscreen", text: "Share of entries kept, per layer and variant" }),
    headRow(["Layer"], ...app.variants.map((variant) => [str(variant.label)])));
  const body = make("tbody");
  for (let layer = 0; layer < app.shape.layers; layer += 1) {
    body.append(make("tr", {},
      make("th", { scope: "row", text: app.evictable.has(layer) ? String(layer) : `${layer} (left whole)` }),
      ...app.variants.map((variant) => numberCell(percent(variant.kept.layerShare(layer))))));
  }
  table.append(body);
  return make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": "Kept share per layer" }, table);
}
