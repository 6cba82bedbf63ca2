// Layout and life of the kept-tokens component: fetch on sight, build the views, link them.

import {
  balanceColumns,
  byTouch,
  list,
  make,
  nearView,
  onValue,
  percent,
  setText,
  specParts,
  str,
  whole,
} from "../../../assets/scripts/dom.js";
import { DENSITY_STOPS, divergingStops, marker } from "../../../assets/scripts/marks.js";
import { differenceMap, headMap, KeptApp, layerMap } from "./app.js";
import { fetchRun } from "./data.js";
import { mapPanel } from "./map.js";
import { drawEvidence, drawToken, shareTable } from "./panels.js";
import { DENSITY_TICKS, legend } from "./ramp.js";
import { stepsPanel } from "./steps.js";
import { TextView } from "./text.js";

const VIEW_MARGIN = "300px";
const MOST_MATCHES = 10_000;
function select(label, options, chosen, onChoose) {
  const node = make("select.ckv-select", { "aria-label": label });
  options.forEach(([value, text]) => node.append(make("option", { value: String(value), text })));
  node.value = String(chosen);
  node.addEventListener("change", () => onChoose(Number(node.value)));
  return node;
}

const variantOptions = (app) => app.variants.map((variant, at) => [at, str(variant.label)]);
const layerOptions = (app) => Array.from({ length: app.shape.layers }, (_, layer) => [layer, `layer ${layer}`]);

function button(text, label, act) {
  return make("button.ckv-button", { text, "aria-label": label, title: label, onclick: act });
}

function toolbar(app) {
  const middle = () => (app.range[0] + app.range[1]) / 2;
  const span = () => app.range[1] - app.range[0];
  const where = make("span.ckv-num.ckv-where");
  const scale = legend("KV heads that keep an entry", DENSITY_TICKS);
  app.views.push((due) => {
    if (!due.has("heat")) return;
    setText(where, `positions ${whole(app.range[0])}–${whole(app.range[1] - 1)} of ${whole(app.positions)}`);
    scale.paint(DENSITY_STOPS);
  });
  const keys = make("div.ckv-keys", [
    [
      ["window", "always kept"],
      ["context", "context"],
      ["question", "after the context"],
    ].map(([name, text]) => make("span.ckv-key", make("i", { class: `ckv-key-${name}`, "aria-hidden": "true" }), text)),
  ]);
  return make("div.ckv-toolbar", [
    make("div.ckv-buttons", { role: "group", "aria-label": "Zoom of all maps" }, [
      button("−", "Zoom out", () => app.zoomTo(app.range, 2, middle())),
      button("+", "Zoom in", () => app.zoomTo(app.range, 0.5, middle())),
      button("◂", "Earlier positions", () => app.showRange(app.range[0] - span() * 0.5, span())),
      button("▸", "Later positions", () => app.showRange(app.range[0] + span() * 0.5, span())),
      button("Fit", "Show all positions", () => app.showRange(0, app.positions)),
    ]),
    where,
    keys,
    scale.node,
  ]);
}

function mapsGrid(app) {
  const grid = make("div.ckv-maps");
  balanceColumns(grid, app.variants.length);
  app.variants.forEach((variant, at) => {
    const map = layerMap(app, variant, at);
    const panel = mapPanel(map, [
      make("span.ckv-name", marker(variant.look), make("span", { title: str(variant.spec) }, ...specParts(variant.label))),
      make("span.ckv-num.ckv-subdued", `${percent(variant.kept.share())} kept`),
    ]);
    panel.dataset.variant = variant.index;
    app.views.push((due) => due.has("heat") && panel.classList.toggle("ckv-chosen", at === app.chosen));
    grid.append(panel);
  });
  return grid;
}

function differencePanel(app) {
  const chooser = (at) =>
    select(at ? "Second variant" : "First variant", variantOptions(app), app.pair[at], (chosen) => {
      app.pair[at] = chosen;
      app.redraw("heat");
    });
  const scale = legend("", [
    [0, "only second (line)"],
    [0.5, "same"],
    [1, "only first"],
  ]);
  app.views.push((due) => {
    if (due.has("heat")) scale.paint(divergingStops());
  });
  const panel = mapPanel(differenceMap(app), [make("strong", "Difference"), chooser(0), make("span", "minus"), chooser(1), scale.node]);
  panel.classList.add("ckv-difference");
  return panel;
}

function headsPanel(app) {
  const variant = variantSelect(app, "Variant of the heads map");
  const layer = select("Layer of the heads map", layerOptions(app), app.layer, (chosen) => app.pick({ layer: chosen }));
  app.views.push((due) => {
    if (due.has("heat")) layer.value = String(app.layer);
  });
  return mapPanel(headMap(app), [make("strong", "KV heads of one layer"), variant, layer]);
}

/** All choosers of the one chosen variant follow each other. */
function variantSelect(app, label) {
  const node = select(label, variantOptions(app), app.chosen, (chosen) => app.pick({ chosen }));
  app.views.push((due) => {
    if (due.has("heat")) node.value = String(app.chosen);
  });
  return node;
}

function searchBox(app, text) {
  const input = make("input.ckv-input", { type: "search", placeholder: "Search the prompt", "aria-label": "Search the prompt" });
  const count = make("span.ckv-num.ckv-subdued.ckv-count", { role: "status" });
  let at = -1;
  const go = (step) => {
    if (app.matches.length === 0) return;
    at = (at + step + app.matches.length) % app.matches.length;
    setText(count, `${whole(at + 1)} of ${whole(app.matches.length)}`);
    app.selectSpan(...app.matches[at]);
    text.reveal(app.matches[at][0]);
  };
  const search = () => {
    app.matches = app.prompt.occurrences(input.value, app.prompt.pieces.length).slice(0, MOST_MATCHES);
    at = -1;
    setText(count, input.value.trim() === "" ? "" : "no match");
    app.redraw("overlay");
    go(1);
  };
  input.addEventListener("input", () => app.later("search", search));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") app.clear();
  });
  app.views.push((due) => {
    if (!due.has("search")) return;
    input.value = "";
    count.textContent = "";
  });
  return make("div.ckv-search", { role: "search" }, [
    input,
    button("↑", "Previous match", () => go(-1)),
    button("↓", "Next match", () => go(1)),
    count,
  ]);
}

function shadeLegend() {
  const sample = (name, text) => make("span.ckv-key", make("span", { class: `t ${name}`, text: "abc" }), text);
  return make("div.ckv-keys", sample("t0", "kept nowhere"), sample("t3", "in few slots"), sample("t8", "in all slots"));
}

function textPanel(app, text) {
  app.views.push((due) => {
    if (due.has("shade")) text.reshade();
    else if (due.has("text") || due.has("point")) text.mark();
  });
  return make("section.ckv-panel.ckv-text-panel", { "aria-label": "Prompt text" }, [
    make("div.ckv-panel-head", make("h3", "Prompt"), variantSelect(app, "Variant that shades the text"), searchBox(app, text)),
    text.box,
    shadeLegend(),
  ]);
}

function sidePanels(app) {
  const evidence = make("section.ckv-panel.ckv-evidence", { "aria-label": "Evidence" });
  const token = make("section.ckv-panel.ckv-token-panel", { "aria-label": "Token" });
  app.views.push((due) => {
    if (!due.has("panels")) return;
    drawEvidence(app, evidence);
    drawToken(app, token);
  });
  return make("div.ckv-side", evidence, token);
}

export default function mount(host) {
  const { root, element } = host;
  const notice = make("div.ckv-empty", { role: "status" });
  const stage = make("div.ckv-kept");
  const live = make("p.ckv-offscreen", { "aria-live": "polite" });
  root.append(notice, stage, live);

  let shownKey = null;
  let current = null;
  let abort = null;

  function build(app) {
    const text = new TextView(app);
    app.text = text;
    const hint = make("p.ckv-hint", {
      text: byTouch(
        "Two fingers zoom; one finger moves along the prompt; a tap picks a token and shows it in the text below.",
        "Ctrl + wheel zooms (the wheel alone once a map has the focus); drag pans; a click picks a token and shows it in the text below; arrow keys move a cursor.",
      ),
    });
    stage.replaceChildren(
      ...[toolbar(app), mapsGrid(app), hint, stepsPanel(app)].filter(Boolean),
      make("div.ckv-pair", app.variants.length > 1 ? differencePanel(app) : null, headsPanel(app)),
      make("div.ckv-reading", textPanel(app, text), sidePanels(app)),
      make("details.ckv-panel.ckv-share", make("summary", "Kept share per layer, as a table"), shareTable(app)),
    );
    const goal = app.applyHash() ?? app.selectAnswer();
    if (goal !== null) text.reveal(goal);
  }

  /** `nothing`: there is nothing to fetch; a page hides that of a run that is over. */
  function say(text, { retry = null, nothing = false } = {}) {
    notice.classList.toggle("ckv-coming", !nothing);
    notice.replaceChildren(make("span", { text }), ...(retry ? [button("Try again", "Fetch the kept tokens again", retry)] : []));
    notice.hidden = text === "";
  }

  async function load(value) {
    abort?.abort();
    abort = new AbortController();
    const { signal } = abort;
    element.dataset.state = "loading";
    say("Fetching the kept tokens …");
    try {
      const run = await fetchRun(value, signal);
      current?.text.close();
      current = new KeptApp(run, host, live);
      current.answer = str(value.answer);
      refresh(newest ?? value);
      current.readInk();
      build(current);
      say("");
      element.dataset.state = "shown";
    } catch (error) {
      if (signal.aborted) return;
      stage.replaceChildren();
      element.dataset.state = "failed";
      say(`The kept tokens could not be fetched: ${error.message}.`, { retry: () => load(value) });
    }
  }

  // Fetch once the component is near the view, and again when the run's data changed.
  let wanted = null;
  const sight = nearView((seen) => {
    if (!wanted || !seen) return;
    const value = wanted;
    wanted = null;
    load(value);
  }, VIEW_MARGIN);

  /** How the generation goes on is no reason to fetch the kept sets again. */
  let newest = null;
  function refresh(value) {
    newest = value;
    if (!current) return;
    for (const variant of current.variants) {
      const { first_difference, finished } = list(value.variants).find((each) => each.index === variant.index) ?? {};
      Object.assign(variant, { first_difference, finished });
    }
    current.redraw("panels");
  }

  onValue(host, (value) => {
    const key = value && list(value.variants).length ? `${value.slug} ${value.key}` : null;
    if (key === shownKey && key !== null) {
      refresh(value);
      return;
    }
    newest = value;
    shownKey = key;
    wanted = key === null ? null : value;
    sight.unobserve(root);
    if (wanted) {
      if (!current) say("The kept tokens are fetched when you scroll here.");
      sight.observe(root);
      return;
    }
    abort?.abort();
    current?.text.close();
    current = null;
    stage.replaceChildren();
    element.dataset.state = "empty";
    say("Which entries each variant keeps appears here once selection is done.", { nothing: true });
  });

  window.addEventListener("hashchange", () => {
    if (!current || !element.isConnected) return;
    const goal = current.applyHash();
    if (goal !== null && goal !== undefined) current.text.reveal(goal);
  });

  new MutationObserver(() => {
    if (!current || !element.isConnected) return;
    current.readInk();
    current.redraw("heat", "panels");
  }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
}
