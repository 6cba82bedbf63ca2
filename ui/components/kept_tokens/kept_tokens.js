// Layout and life of the kept-tokens component: fetch on sight, build the views, link them.

import { chosenVariant } from "../../../assets/scripts/choice.js";
import {
  button,
  byTouch,
  list,
  make,
  nearView,
  onTheme,
  onValue,
  quietButton,
  select,
  setText,
  str,
  whole,
} from "../../../assets/scripts/dom.js";
import { divergingStops, marker } from "../../../assets/scripts/marks.js";
import { differenceMap, headMap, KeptApp } from "./app.js";
import { KeptRun, onReplaced } from "./data.js";
import { evidencePanel, layerTable } from "./evidence.js";
import { legend } from "./ramp.js";
import { mapRows } from "./rows.js";
import { stepsPanel } from "./steps.js";
import { TextView } from "./text.js";

const VIEW_MARGIN = "300px";
const MOST_MATCHES = 10_000;
const EMPTY = "No maps yet: a run has them once its methods have chosen what to keep.";

/** A choice among places in a list, which follows `read()`; of variants unless `names` are given. */
function chooser(app, label, { read, choose, names = app.variants.map((variant) => str(variant.label)) }) {
  const options = names.map((name, at) => [at, name]);
  const node = select(options, read(), (value) => choose(Number(value)), { "aria-label": label });
  app.on("heat", () => {
    node.value = String(read());
  });
  return node;
}

const signButton = (text, label, act) => button(text, act, { "aria-label": label, title: label });

/** Zoom of all maps, and how it is done without these buttons. */
function toolbar(app) {
  const middle = () => (app.range[0] + app.range[1]) / 2;
  const where = make("span.ckv-num.ckv-where");
  app.on("heat", () => setText(where, `positions ${whole(app.range[0])}–${whole(app.range[1] - 1)} of ${whole(app.positions)}`));
  const hint = byTouch(
    "Two fingers zoom a map, one moves along the prompt.",
    "Ctrl + wheel zooms a map; in a map with the focus the wheel alone does. Drag moves it. Arrow keys move a cursor, Enter picks its token.",
  );
  return make("div.ckv-row.ckv-toolbar.ckv-small", [
    make("div.ckv-row.ckv-buttons", { role: "group", "aria-label": "Zoom of all maps" }, [
      signButton("−", "Zoom out", () => app.zoomTo(app.range, 2, middle())),
      signButton("+", "Zoom in", () => app.zoomTo(app.range, 0.5, middle())),
      signButton("◂", "Earlier positions", () => app.pan(-0.5)),
      signButton("▸", "Later positions", () => app.pan(0.5)),
    ]),
    where,
    make("span.ckv-hint", { text: hint }),
  ]);
}

function differencePanel(app) {
  const [one, two] = ["First method", "Second method"].map((label, at) => {
    const choose = (chosen) => {
      app.pair[at] = chosen;
      app.redraw("heat");
    };
    return chooser(app, label, { read: () => app.pair[at], choose });
  });
  const scale = legend("only second (line)", "only first");
  app.on("heat", () => scale.paint(divergingStops()));
  const panel = differenceMap(app).panel(make("strong", "Difference"), one, make("span", "minus"), two, scale.node);
  panel.classList.add("ckv-difference");
  return panel;
}

function headsPanel(app) {
  const names = Array.from({ length: app.shape.layers }, (_, layer) => `layer ${layer}`);
  const layers = chooser(app, "Layer of the heads map", { names, read: () => app.layer, choose: (layer) => app.showLayer(layer) });
  const methods = chooser(app, "Method of the heads map", { read: () => app.chosen, choose: (chosen) => app.choose(chosen) });
  return headMap(app).panel(make("strong", "KV heads of one layer"), methods, layers);
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
    placeholder: "Search text",
    "aria-label": "Search the prompt",
    oninput: search,
    onkeydown: (event) => {
      if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") close();
    },
  });
  const box = make("div.ckv-row.ckv-search", { role: "search", hidden: true }, [
    count,
    input,
    signButton("↑", "Previous match", () => go(-1)),
    signButton("↓", "Next match", () => go(1)),
  ]);
  const open = quietButton("Search text", () => {
    box.hidden = false;
    open.hidden = true;
    input.focus();
  });
  const close = () => {
    app.clear();
    box.hidden = true;
    open.hidden = false;
    open.focus();
  };
  app.on("search", () => {
    input.value = "";
    count.textContent = "";
  });
  return [open, box];
}

/** The card of the prompt, shaded for the chosen variant. */
function reader(app, text) {
  const name = make("h3.ckv-name");
  const scale = legend("kept by no head", `by all ${whole(app.slotCount())}`);
  app.on("heat", () => {
    const { look, label, color } = app.current();
    name.replaceChildren(marker(look), make("span", str(label)));
    scale.paint([app.ink.surface, color]);
  });
  return make("section.ckv-card.ckv-reader", { "aria-label": "Prompt text" }, [
    make("div.ckv-row.ckv-reader-head", name, ...searchBox(app, text)),
    text.box,
    make("div.ckv-reader-foot", scale.node),
  ]);
}

/** Views that are rarely needed, built when they are first opened. */
function moreViews(app) {
  const body = make("div.ckv-stack");
  const node = make("details.ckv-more", [
    make(
      "summary",
      make("span", "More views"),
      make("span.ckv-hint", "zoom, difference of two methods, single KV heads, shares per layer"),
    ),
    body,
  ]);
  const build = () => {
    const steps = stepsPanel(app);
    body.append(
      toolbar(app),
      ...(steps ? [steps] : []),
      make("div.ckv-grid.ckv-pair", app.variants.length > 1 ? differencePanel(app) : null, headsPanel(app)),
      make("section.ckv-panel.ckv-share", { "aria-label": "Kept share per layer" }, [
        make("h3", "Kept share per layer"),
        layerTable(app, "Share of entries kept, per layer and method", (variant, layer) => variant.kept.layerShare(layer)),
      ]),
    );
  };
  node.addEventListener("toggle", () => {
    if (node.open && !body.hasChildNodes()) build();
    if (node.open) app.redraw("heat", "panels", "step");
  });
  return node;
}

export default function mount(host) {
  const { root, element } = host;
  const notice = make("div.ckv-empty", { role: "status" });
  const stage = make("div.ckv-kept");
  const live = make("p.ckv-offscreen", { "aria-live": "polite" });
  root.append(notice, stage, live);

  let newest = null; // value
  let run = null; // of the newest key
  let shownKey = null;
  let wanted = false; // whether the value's sets are still to be fetched
  let current = null;
  let replaced = null; // as replaceKept was given
  let abort = null;

  function build(app) {
    const text = new TextView(app);
    app.text = text;
    stage.replaceChildren(make("div.ckv-kept-two", mapRows(app), reader(app, text)), evidencePanel(app), moreViews(app));
    app.setAnswer(str(newest.answer));
    app.applyHash();
    if (replaced) app.replace(replaced);
    if (app.span) text.reveal(app.span[0]);
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

  /** Of several budgets those of the chosen one, or the chosen variant alone. */
  function chosenVariants() {
    const all = list(newest.variants);
    const named = (wanted) => all.find(({ index }) => index === wanted);
    const chosen = named(chosenVariant()) ?? named(newest.one) ?? all[0];
    return Number.isInteger(newest.one) ? [chosen] : all.filter(({ group }) => group === chosen.group);
  }

  async function load() {
    abort?.abort();
    abort = new AbortController();
    const { signal } = abort;
    wanted = false;
    if (!current) say("Fetching the kept tokens …", "loading");
    try {
      const loaded = await run.load(chosenVariants(), signal);
      if (signal.aborted) return;
      current?.text.close();
      current = new KeptApp(loaded, host, live);
      current.readInk();
      current.whyAddress = () => (newest?.why && !replaced ? `${run.base}/why` : "");
      build(current);
      say("", "shown");
      follow(); // another may have been chosen meanwhile
    } catch (error) {
      if (signal.aborted) return;
      drop();
      say(`The kept tokens could not be fetched: ${error.message}.`, "failed", load);
    }
  }

  // Fetch once the component is near the view, and again when the run's data changed.
  const sight = nearView((seen) => wanted && seen && load(), VIEW_MARGIN);

  onValue(host, (value) => {
    const key = value && list(value.variants).length ? `${value.slug} ${value.key}` : null;
    newest = value;
    if (key !== null && key === shownKey) {
      current?.redraw("panels");
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
    run = new KeptRun(value);
    if (!current) say("The kept tokens are fetched when you scroll here.", "waiting");
    sight.observe(root);
  });

  /** Show what the address names; sets that are not here are fetched. */
  function follow() {
    if (!current || wanted || !element.isConnected) return;
    const { index } = chosenVariants()[0];
    if (!current.variants.some((each) => each.index === index)) {
      load();
      return;
    }
    const goal = current.applyHash();
    if (goal !== null) current.text.reveal(goal);
  }

  window.addEventListener("hashchange", follow);

  onReplaced((sets) => {
    replaced = sets;
    if (element.isConnected) current?.replace(sets);
  });

  onTheme(element, () => {
    current?.readInk();
    current?.redraw("heat", "panels");
  });
}
