// The list of maps: a row a variant, all over one axis of positions.

import { button, make, percent, setText, specParts, str, whole } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { layerMap } from "./app.js";
import { niceStep } from "./map.js";

const MANY = 8; // rows, beyond which each is lower
const TICK_PX = 96;

/** How much of the span a variant keeps, in words; of all it may keep where there is no span. */
function keptWords(app, variant) {
  const judged = app.judged();
  if (!judged) return `kept: ${percent(variant.kept.share())}`;
  return `${app.answerAt() < 0 ? "selection" : "answer"} kept: ${percent(variant.kept.evidence(...judged, variant).mean)}`;
}

function mapRow(app, variant, at) {
  const map = layerMap(app, variant, at, { bare: true });
  const kept = make("span.ckv-num.ckv-hint");
  const name = make("button.ckv-choose.ckv-name", { title: str(variant.spec), onclick: () => app.choose(at) }, [
    marker(variant.look),
    make("span", ...specParts(variant.label)),
  ]);
  const words = make("div.ckv-map-name", { onclick: () => app.choose(at) }, name, kept);
  const row = make("div.ckv-map-row", { "data-variant": variant.index }, words, map.box);
  app.on("heat", () => {
    const isChosen = at === app.chosen;
    row.classList.toggle("ckv-chosen", isChosen);
    name.setAttribute("aria-pressed", String(isChosen));
    map.top.tabIndex = isChosen ? 0 : -1; // one stop of the keyboard for all maps
  });
  app.on("panels", () => setText(kept, keptWords(app, variant)));
  return row;
}

/** Text at a share of the axis, inside it. */
const place = (share, text, name = "span") => make(name, { text, style: `left: ${100 * share}%; transform: translateX(${-100 * share}%)` });

/** Positions under the maps, and where the span stands. */
function axis(app) {
  const ticks = make("div.ckv-ticks.ckv-num.ckv-hint", { "aria-hidden": "true" });
  const all = button("Show all", () => app.showRange(0, app.positions), { class: "ckv-quiet", title: "Show all positions of the prompt" });
  const node = make("div.ckv-map-row.ckv-axis", make("div", all), ticks);
  const draw = () => {
    const [x0, x1] = app.range;
    all.hidden = x1 - x0 === app.positions;
    const width = ticks.clientWidth;
    const step = niceStep(x1 - x0, width / TICK_PX);
    const last = x1 === app.positions ? x1 : x1 - 1;
    const places = [[0, x0 === 0 ? "token 0" : whole(x0)]];
    for (let at = Math.ceil((x0 + step / 2) / step) * step; at < x1; at += step) {
      const share = (at - x0) / (x1 - x0);
      if (share * width > 70 && (1 - share) * width > 50) places.push([share, whole(at)]);
    }
    places.push([1, whole(last)]);
    const words = places.map(([share, text]) => place(share, text));
    if (app.span && app.span[0] < x1 && app.span[1] > x0) {
      const [first, end] = app.span;
      const name = end - first === 1 ? `token ${whole(first)}` : `tokens ${whole(first)}–${whole(end - 1)}`;
      const share = Math.min(1, Math.max(0, ((first + end) / 2 - x0) / (x1 - x0)));
      words.push(place(share, `“${app.quote()}” ${name}`, "strong"));
    }
    ticks.replaceChildren(...words);
  };
  app.on("heat", draw);
  app.on("panels", draw);
  return node;
}

/** The card of all maps. */
export function mapRows(app) {
  const rows = make("div.ckv-map-rows", ...app.variants.map((variant, at) => mapRow(app, variant, at)));
  rows.classList.toggle("ckv-many", app.variants.length > MANY);
  return make("div.ckv-card.ckv-maps-card", rows, axis(app));
}
