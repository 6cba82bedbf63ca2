// How much of a span each variant still keeps: a table with bars by layer, and its files.

import {
  byTouch,
  downloadCsv,
  exportMenu,
  make,
  percent,
  quietButton,
  scroller,
  setText,
  shape,
  specParts,
  str,
  tableHead,
  whole,
} from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { linesOf, post } from "../../../assets/scripts/stream.js";

const BAR = { step: 6, width: 5, height: 26 };
const MEANINGS = {
  kept: "Mean share of the (layer, KV head) slots of these tokens that are kept",
  chance: "Share that this budget would keep if the unprotected entries were chosen at random",
  times: "Slots kept / expected at random",
  whole: "(layer, KV head) pairs that keep every one of these tokens",
  layers: "Share kept in each evictable layer; the line is the share expected at random",
};

/** Shares kept per layer as bars, and the shares expected at random as ticks, layers left to right. */
function barPaths({ layers }) {
  const { step, width, height } = BAR;
  const bars = layers.map(({ held }, at) => `M${at * step} ${height}v${-height * held}h${width}V${height}z`);
  const ticks = layers.map(({ chance }, at) => `M${at * step} ${height * (1 - chance)}h${width}`);
  return { bars: bars.join(""), ticks: ticks.join("") };
}

/** Bars over a base line; `draw(found, color)` takes new shares. */
function layerBars(count) {
  const bars = shape("path", {});
  const ticks = shape("path", { class: "ckv-chance", fill: "none", "stroke-width": 1 });
  const width = Math.max(1, count) * BAR.step;
  const base = shape("path", { class: "ckv-base", fill: "none", "stroke-width": 1, d: `M0 ${BAR.height - 0.5}H${width}` });
  const viewBox = `0 0 ${width} ${BAR.height}`;
  const node = shape("svg", { viewBox, preserveAspectRatio: "none", class: "ckv-layer-bars", role: "img" }, base, bars, ticks);
  const draw = (found, color) => {
    const paths = barPaths(found);
    bars.setAttribute("fill", color);
    bars.setAttribute("d", paths.bars);
    ticks.setAttribute("d", paths.ticks);
  };
  return { node, draw };
}

function evidenceRow(app, variant, at) {
  const name = make("button.ckv-choose.ckv-name", [marker(variant.look), make("span", ...specParts(variant.label))]);
  const cells = ["Slots kept", "At random", "Against random", "Heads with all"].map((label) =>
    make("td.ckv-num.ckv-right", { "data-label": label }),
  );
  const bars = layerBars(app.shape.evictable.length);
  const head = make("th", { scope: "row" }, name);
  const node = make("tr", { "data-variant": variant.index, onclick: () => app.choose(at) }, [
    head,
    ...cells,
    make("td.ckv-layers", bars.node),
  ]);
  const draw = (first, end) => {
    const found = variant.kept.evidence(first, end, variant);
    const times = found.mean / found.chance;
    const texts = [
      percent(found.mean),
      percent(found.chance),
      found.chance > 0 ? `${times.toFixed(times < 10 ? 1 : 0)}×` : "–",
      `${whole(found.whole)} of ${whole(found.slots)}`,
    ];
    cells.forEach((cell, place) => setText(cell, texts[place]));
    bars.draw(found, variant.color);
    const words = found.layers.map((each) => `${each.layer}: ${percent(each.held)}`).join(", ");
    bars.node.setAttribute("aria-label", `${str(variant.label)}, kept by layer: ${words}`);
  };
  const mark = () => {
    node.setAttribute("aria-selected", String(at === app.chosen));
    name.setAttribute("aria-pressed", String(at === app.chosen));
  };
  return { node, draw, mark };
}

/** The evidence of a span by layer, unrounded. */
function saveTable(app, first, end) {
  const lines = app.variants.flatMap((variant) =>
    variant.kept
      .evidence(first, end, variant)
      .layers.map(({ layer, kept, of, held, chance }) => [variant.index, variant.spec, layer, kept, of, held, chance]),
  );
  const head = ["variant", "spec", "layer", "slots_held", "slots", "share", "share_by_chance"];
  downloadCsv([head, ...lines], `evidence-${first}-${end - 1}.csv`);
}

/** The line below the heading. */
function sentence(app) {
  const way = byTouch("Search the text, or tap a token", "Search the text, drag over it, or click a token");
  if (!app.span) {
    const missing = app.answer ? "The compressed prompt does not contain the expected answer. " : "";
    return `${missing}${way}, to see which methods still keep it.`;
  }
  if (!app.judged()) return "This is read after eviction: every method keeps all of it.";
  const [first, end] = app.judged();
  const what = app.answerAt() < 0 ? "this text" : "the expected answer";
  const tokens = end - first;
  const heads = `one slot in each of ${whole(app.slotCount())} KV heads`;
  const slots =
    tokens === 1 ? `Its token has ${heads}` : `Its ${whole(tokens)} tokens have ${heads}, ${whole(tokens * app.slotCount())} in all`;
  return `How much of ${what} is still in the cache. ${slots}.`;
}

/** What leads to the expected answer, to its next place, or to no span. */
function backButton(app) {
  const go = () => {
    const places = app.answers.length;
    if (places === 0) {
      app.clear();
      return;
    }
    const next = app.answers[(app.answerAt() + 1) % places];
    app.selectSpan(...next);
    app.text.reveal(next[0]);
  };
  const node = quietButton("", go);
  const draw = () => {
    const [at, places] = [app.answerAt(), app.answers.length];
    node.hidden = !app.span || (at === 0 && places === 1);
    if (places === 0) setText(node, "Clear");
    else setText(node, at < 0 ? "Back to the expected answer" : `Place ${at + 1} of ${places}, go to the next`);
  };
  return { node, draw };
}

/** The next tapped token ends the span, for fingers: a mouse drags, keys hold Shift. */
function extendButton(app) {
  const node = quietButton("Select from here", () => {
    app.extending = !app.extending;
    app.redraw("panels");
  });
  const draw = () => {
    node.hidden = !app.span || byTouch("", "mouse") !== "";
    node.setAttribute("aria-pressed", String(app.extending));
  };
  return { node, draw };
}

/** What brings the answer back that the chosen method lost: a button, and the sentence once it is known. */
function whyBox(app) {
  const text = make("p.ckv-why", { role: "status", hidden: true });
  let [abort, shown] = [null, ""];
  const place = () => `${app.current().index} ${app.judged()}`;
  const say = (words) => {
    setText(text, words);
    text.hidden = words === "";
  };
  const ask = async () => {
    const judged = app.judged();
    if (!judged) return; // the button goes at the next frame
    abort?.abort();
    abort = new AbortController();
    const { signal } = abort;
    const [variant, name] = [app.current().index, str(app.current().label)];
    const [first, end] = judged;
    const evidence = app.answerAt() < 0 ? [`tokens:${first}-${end - 1}`] : [];
    shown = place();
    say(`Putting evicted entries back for ${name} …`);
    try {
      for await (const line of linesOf(await post(app.whyAddress(), { variant, evidence }, signal))) {
        if (line.progress) say(`Putting evicted entries back for ${name}: ${line.progress} …`);
        if (line.sentence) say(`${name}: ${line.sentence}`);
        if (line.error) say(line.error);
      }
    } catch (error) {
      if (!signal.aborted) say(error.message);
    }
  };
  const node = quietButton("Why was it lost?", ask, {
    title: "Puts evicted entries of the chosen method back and has the model answer again, with random entries as control",
  });
  const draw = () => {
    node.hidden = !app.whyAddress() || !app.answer || app.judged() === null;
    if (shown && shown !== place()) {
      abort?.abort();
      shown = "";
      say("");
    }
  };
  return { node, text, draw };
}

/** The section: heading, sentence and a row a variant. */
export function evidencePanel(app) {
  const [title, words] = [make("h3"), make("p.ckv-hint")];
  const rows = app.variants.map((variant, at) => evidenceRow(app, variant, at));
  const { evictable } = app.shape;
  const right = (text, title) => ({ text, title, class: "ckv-right" });
  const layers = { text: `By layer, ${evictable[0]} to ${evictable.at(-1)}`, title: MEANINGS.layers };
  const head = tableHead(
    "Method",
    right("Slots kept", MEANINGS.kept),
    right("Expected at random", MEANINGS.chance),
    right("Against random", MEANINGS.times),
    right("Heads with all tokens", MEANINGS.whole),
    layers,
  );
  const card = make("div.ckv-card.ckv-flush", [
    make("table.ckv-table.ckv-lines", [
      make("caption.ckv-offscreen", "Share of the selected text that each method keeps"),
      head,
      make("tbody", ...rows.map((row) => row.node)),
    ]),
  ]);
  const byLayer = make("div.ckv-by-layer", { hidden: true });
  const files = exportMenu("Evidence by layer", [
    ["CSV", () => saveTable(app, ...app.judged())],
    ["As a table", () => showTable(app, byLayer)],
  ]);
  const why = whyBox(app);
  const buttons = [backButton(app), extendButton(app), why];
  const draw = () => {
    const judged = app.judged();
    setText(title, app.span ? `Evidence: “${app.quote()}”` : "Evidence");
    setText(words, sentence(app));
    for (const each of buttons) each.draw();
    for (const row of rows) row.mark();
    files.hidden = card.hidden = judged === null;
    if (!judged) byLayer.hidden = true;
    else for (const row of rows) row.draw(...judged);
    if (!byLayer.hidden) fillTable(app, byLayer);
  };
  app.on("panels", draw);
  return make("section.ckv-evidence", { "aria-label": "Evidence" }, [
    make(
      "div.ckv-row.ckv-panel-head",
      make("div", title, words),
      make(
        "div.ckv-row",
        buttons.map((each) => each.node),
        files,
      ),
    ),
    why.text,
    card,
    byLayer,
  ]);
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

function fillTable(app, box) {
  const [first, end] = app.judged();
  const share = (variant, layer) => variant.kept.layerSum(layer, first, end) / ((end - first) * app.shape.heads);
  box.replaceChildren(layerTable(app, `Share of tokens ${first}–${end - 1} kept, by layer`, share));
}

function showTable(app, box) {
  box.hidden = !box.hidden;
  if (box.hidden) return;
  fillTable(app, box);
  box.scrollIntoView({ block: "nearest" });
}
