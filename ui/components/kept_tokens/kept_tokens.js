// Layout and life of the kept-tokens component: fetch on sight, build the views, link them.

import { chosenVariant } from "../../../assets/scripts/choice.js";
import {
  balanceColumns,
  button,
  byTouch,
  list,
  make,
  nearView,
  onTheme,
  onValue,
  percent,
  select,
  setText,
  specParts,
  str,
  whole,
} from "../../../assets/scripts/dom.js";
import { DENSITY_STOPS, divergingStops, marker } from "../../../assets/scripts/marks.js";
import { differenceMap, headMap, KeptApp, layerMap } from "./app.js";
import { fetchRun } from "./data.js";
import { drawEvidence, drawToken, shareTable } from "./panels.js";
import { DENSITY_TICKS, legend } from "./ramp.js";
import { stepsPanel } from "./steps.js";
import { shadeOf, TextView } from "./text.js";

const VIEW_MARGIN = "300px";
const MOST_MATCHES = 10_000;
const EMPTY = "Which entries each variant keeps appears here once selection is done.";

/** A choice among places in a list, which follows `read()`; of variants unless `names` are given. */
function chooser(app, label, { read, choose, names = app.variants.map((variant) => str(variant.label)) }) {
  const options = names.map((name, at) => [at, name]);
  const node = select(options, read(), (value) => choose(Number(value)), { "aria-label": label });
  app.on("heat", () => {
    node.value = String(read());
  });
  return node;
}

const variantChooser = (app, label) => chooser(app, label, { read: () => app.chosen, choose: (chosen) => app.pick({ chosen }) });

const signButton = (text, label, act) => button(text, act, { "aria-label": label, title: label });

function toolbar(app) {
  const middle = () => (app.range[0] + app.range[1]) / 2;
  const where = make("span.ckv-num.ckv-where");
  const scale = legend("KV heads that keep an entry", DENSITY_TICKS);
  scale.paint(DENSITY_STOPS);
  app.on("heat", () => setText(where, `positions ${whole(app.range[0])}–${whole(app.range[1] - 1)} of ${whole(app.positions)}`));
  const key = (name, text) => make("span.ckv-name", make("i", { style: `background: var(${name})`, "aria-hidden": "true" }), text);
  return make("div.ckv-row.ckv-toolbar.ckv-small", [
    make("div.ckv-row.ckv-buttons", { role: "group", "aria-label": "Zoom of all maps" }, [
      signButton("−", "Zoom out", () => app.zoomTo(app.range, 2, middle())),
      signButton("+", "Zoom in", () => app.zoomTo(app.range, 0.5, middle())),
      signButton("◂", "Earlier positions", () => app.pan(-0.5)),
      signButton("▸", "Later positions", () => app.pan(0.5)),
      signButton("Fit", "Show all positions", () => app.showRange(0, app.positions)),
    ]),
    where,
    make("div.ckv-row.ckv-keys.ckv-hint", [
      key("--body-text-color", "always kept"),
      key("--ckv-context", "context"),
      key("--ckv-question", "after the context"),
    ]),
    scale.node,
  ]);
}

function mapsGrid(app) {
  const grid = make("div.ckv-maps");
  balanceColumns(grid, app.variants.length);
  app.variants.forEach((variant, at) => {
    const panel = layerMap(app, variant, at).panel(
      make("span.ckv-name", marker(variant.look), make("span", { title: str(variant.spec) }, ...specParts(variant.label))),
      make("span.ckv-num.ckv-subdued", `${percent(variant.kept.share())} kept`),
    );
    panel.dataset.variant = variant.index;
    app.on("heat", () => panel.classList.toggle("ckv-chosen", at === app.chosen));
    grid.append(panel);
  });
  return grid;
}

function differencePanel(app) {
  const [one, two] = ["First variant", "Second variant"].map((label, at) => {
    const choose = (chosen) => {
      app.pair[at] = chosen;
      app.redraw("heat");
    };
    return chooser(app, label, { read: () => app.pair[at], choose });
  });
  const scale = legend("", [
    [0, "only second (line)"],
    [0.5, "same"],
    [1, "only first"],
  ]);
  app.on("heat", () => scale.paint(divergingStops()));
  const panel = differenceMap(app).panel(make("strong", "Difference"), one, make("span", "minus"), two, scale.node);
  panel.classList.add("ckv-difference");
  return panel;
}

function headsPanel(app) {
  const names = Array.from({ length: app.shape.layers }, (_, layer) => `layer ${layer}`);
  const layers = chooser(app, "Layer of the heads map", { names, read: () => app.layer, choose: (layer) => app.pick({ layer }) });
  return headMap(app).panel(make("strong", "KV heads of one layer"), variantChooser(app, "Variant of the heads map"), layers);
}

function searchBox(app, text) {
  const count = make("span.ckv-num.ckv-hint.ckv-count", { role: "status" });
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
  const input = make("input.ckv-input", {
    type: "search",
    placeholder: "Search the prompt",
    "aria-label": "Search the prompt",
    oninput: search,
    onkeydown: (event) => {
      if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") app.clear();
    },
  });
  app.on("search", () => {
    input.value = "";
    count.textContent = "";
  });
  return make("div.ckv-row.ckv-search", { role: "search" }, [
    input,
    signButton("↑", "Previous match", () => go(-1)),
    signButton("↓", "Next match", () => go(1)),
    count,
  ]);
}

function textPanel(app, text) {
  const sample = (share, words) =>
    make("span.ckv-name", make("span", { class: share ? "t" : "t t0", style: `--kept: ${shadeOf(share)}`, text: "abc" }), words);
  return make("section.ckv-panel", { "aria-label": "Prompt text" }, [
    make("div.ckv-row.ckv-panel-head", make("h3", "Prompt"), variantChooser(app, "Variant that shades the text"), searchBox(app, text)),
    text.box,
    make("div.ckv-row.ckv-keys.ckv-hint", sample(0, "kept nowhere"), sample(0.15, "in few slots"), sample(1, "in all slots")),
  ]);
}

function sidePanels(app) {
  const evidence = make("section.ckv-panel.ckv-evidence", { "aria-label": "Evidence" });
  const token = make("section.ckv-panel.ckv-token-panel", { "aria-label": "Token" });
  app.on("panels", () => {
    drawEvidence(app, evidence);
    drawToken(app, token);
  });
  return make("div.ckv-stack.ckv-side", evidence, token);
}

export default function mount(host) {
  const { root, element } = host;
  const notice = make("div.ckv-empty", { role: "status" });
  const stage = make("div.ckv-stack.ckv-kept");
  const live = make("p.ckv-offscreen", { "aria-live": "polite" });
  root.append(notice, stage, live);

  let given = null; // value
  let newest = null; // the same with the variants that are shown
  let shownKey = null;
  let wanted = false; // whether the value's sets are still to be fetched
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
    const steps = stepsPanel(app);
    stage.replaceChildren(
      toolbar(app),
      mapsGrid(app),
      hint,
      ...(steps ? [steps] : []),
      make("div.ckv-grid.ckv-pair", app.variants.length > 1 ? differencePanel(app) : null, headsPanel(app)),
      make("div.ckv-grid.ckv-reading", textPanel(app, text), sidePanels(app)),
      make("details.ckv-panel.ckv-share.ckv-small", make("summary", "Kept share per layer, as a table"), shareTable(app)),
    );
    const goal = app.applyHash() ?? app.selectAnswer();
    if (goal !== null) text.reveal(goal);
  }

  function drop() {
    abort?.abort();
    current?.text.close();
    current = null;
    stage.replaceChildren();
  }

  /** `state` is for tests; a page hides what only says that there is nothing, of a run that is over. */
  function say(text, state, retry = null) {
    element.dataset.state = state;
    notice.classList.toggle("ckv-coming", state !== "empty");
    notice.replaceChildren(make("span", { text }), ...(retry ? [signButton("Try again", "Fetch the kept tokens again", retry)] : []));
    notice.hidden = text === "";
  }

  async function load() {
    abort?.abort();
    abort = new AbortController();
    const { signal } = abort;
    const value = newest;
    wanted = false;
    say(current ? "" : "Fetching the kept tokens …", "loading"); // what is there stays until the next is
    try {
      const run = await fetchRun(value, signal);
      current?.text.close();
      current = new KeptApp(run, host, live);
      current.answer = str(value.answer);
      refresh();
      current.readInk();
      build(current);
      say("", "shown");
    } catch (error) {
      if (signal.aborted) return;
      drop();
      say(`The kept tokens could not be fetched: ${error.message}.`, "failed", load);
    }
  }

  // Fetch once the component is near the view, and again when the run's data changed.
  const sight = nearView((seen) => wanted && seen && load(), VIEW_MARGIN);

  /** A generation that advances is no reason to fetch the kept sets again. */
  function refresh() {
    for (const variant of current?.variants ?? []) {
      const { first_difference, finished } = list(newest.variants).find((each) => each.index === variant.index) ?? {};
      Object.assign(variant, { first_difference, finished });
    }
    current?.redraw("panels");
  }

  /** Of several budgets one point at a time: that of the address, else `one`. */
  function narrowed(value) {
    if (!Number.isInteger(value?.one)) return value;
    const named = (index) => list(value.variants).filter((each) => each.index === index);
    const own = named(chosenVariant());
    return { ...value, variants: own.length ? own : named(value.one) };
  }

  const shownNow = (value) => list(value.variants).map((each) => each.index);

  function take(value) {
    given = value;
    newest = narrowed(value);
    const key = value && shownNow(newest).length ? `${value.slug} ${value.key} ${shownNow(newest)}` : null;
    if (key !== null && key === shownKey) {
      refresh();
      return;
    }
    shownKey = key;
    wanted = key !== null;
    sight.unobserve(root);
    if (!wanted) {
      drop();
      say(EMPTY, "empty");
      return;
    }
    if (!current) say("The kept tokens are fetched when you scroll here.", "waiting");
    sight.observe(root);
  }

  onValue(host, take);

  window.addEventListener("hashchange", () => {
    if (!element.isConnected) return;
    if (given && String(shownNow(narrowed(given))) !== String(shownNow(newest))) take(given);
    if (!current) return;
    const goal = current.applyHash();
    if (goal !== null) current.text.reveal(goal);
  });

  onTheme(element, () => {
    current?.readInk();
    current?.redraw("heat", "panels");
  });
}
