// Budget and alpha of a stored result as sliders: maps and answers follow, nothing is stored.

import { button, make, quietButton, setText, showInstead } from "../../../assets/scripts/dom.js";
import { linesOf, post } from "../../../assets/scripts/stream.js";
import { replaceKept } from "../kept_tokens/data.js";

class Previews {
  /** `take(line, body)` gets each object of the newest request that has a right to be shown. */
  constructor(url, take) {
    this.url = url;
    this.take = take;
    this.next = null; // what waits until the present request has shown its kept sets
    this.abort = null;
    this.isChoosing = false;
  }

  /** Ask for a preview; while another has shown nothing yet, it waits, and a newer one takes its place. */
  ask(body) {
    this.next = body;
    if (!this.isChoosing) this.begin();
  }

  stop() {
    this.next = null;
    this.isChoosing = false;
    this.abort?.abort();
  }

  async begin() {
    const body = this.next;
    this.stop();
    const abort = new AbortController();
    Object.assign(this, { abort, isChoosing: true });
    let isOver = false;
    try {
      for await (const line of linesOf(await post(this.url, body, abort.signal))) {
        if (abort.signal.aborted) return;
        this.take(line, body);
        isOver ||= Boolean(line.end || line.error);
        if (line.kept || isOver) this.goOn();
      }
      if (!isOver) throw new Error("The connection was lost. Move the slider again.");
    } catch (error) {
      if (abort.signal.aborted) return;
      this.take({ error: error.message }, body);
      this.goOn();
    }
  }

  goOn() {
    this.isChoosing = false;
    if (this.next) this.begin();
  }
}

const REST_MS = 150; // without a movement, while a slider is still held
const WAIT_MS = 1000; // without a word from the server
const IDLE = "Drag to preview";
const ANSWERS = "answers"; // id of the table of answers
const CHARTS = "charts"; // id of the charts of the first step

const percentText = (value) => `${Number(value.toFixed(1))} %`;
const alphaText = (value) => String(Number(value.toFixed(2)));

/** How each slider is shown, and what is sent of it. */
const KINDS = {
  budget: {
    label: "Budget",
    step: 1,
    text: percentText,
    sent: (value) => `${value}%`,
    help: "Share of the prompt that each method keeps, on average over KV heads.",
  },
  alpha: {
    label: "Alpha",
    step: 0.05,
    text: alphaText,
    sent: (value) => String(value),
    help: "Share of the budget that CriticalKV chooses by attention alone.",
  },
};

/** A slider: {node, reset(), sent()}; `sent` is null at the run's own value. */
function slider(name, { at, least, most }, tokens, act) {
  const kind = KINDS[name];
  const output = make("output.ckv-num", { "aria-hidden": "true" });
  const input = make("input.ckv-range", {
    type: "range",
    min: Math.ceil(least / kind.step) * kind.step,
    max: most,
    step: kind.step,
    "aria-label": kind.label,
    title: kind.help,
  });
  let isOwn = true;
  let home = ""; // the step that is nearest to the run's own value
  const value = () => (isOwn ? at : Number(input.value));
  const share = (of) => (of - input.min) / Math.max(input.max - input.min, 1e-9);
  const draw = () => {
    setText(output, kind.text(value()));
    input.style.setProperty("--at", share(Number(input.value)));
    const words = name === "budget" ? `, ${Math.floor((value() * tokens) / 100 + 1e-9)} tokens per KV head` : "";
    input.setAttribute("aria-valuetext", `${kind.text(value())}${words}${isOwn ? ", as in the run" : ", preview"}`);
  };
  const moved = (isHeld) => () => {
    isOwn = input.value === home;
    draw();
    act(isHeld);
  };
  input.addEventListener("input", moved(true));
  input.addEventListener("change", moved(false));
  const reset = () => {
    input.value = String(at);
    home = input.value;
    isOwn = true;
    draw();
  };
  reset();
  const track = make("span.ckv-track", { style: `--own: ${share(at)}` }, input);
  const node = make("label.ckv-live-slider", make("span", kind.label), track, output);
  return { node, reset, text: () => kind.text(value()), sent: () => (isOwn ? null : kind.sent(Number(input.value))) };
}

/** Fill a row with the sliders of a run, as `live_value` (ui/results/next_steps.py) gives them: `draw(value)`, null for none. */
export function liveRow(row) {
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "Preview other settings");
  let drawn = "";
  let stop = () => {};

  function build(value) {
    const base = `/data/${encodeURIComponent(value.slug)}`;
    const names = Object.keys(KINDS).filter((name) => value[name]);
    const sliders = Object.fromEntries(names.map((name) => [name, slider(name, value[name], value.tokens, (held) => moved(held))]));
    const words = make("span.ckv-live-words", { text: IDLE });
    const spoken = make("span.ckv-offscreen", { "aria-live": "polite" });
    const save = button("Save as run", () => keep(), { hidden: true, title: "Run these settings and store the result." });
    const back = quietButton("Back to the run", () => reset(), { hidden: true, title: "Show the stored result again." });
    row.replaceChildren(...names.map((name) => sliders[name].node), make("div.ckv-live-state", words, save, back, spoken));
    const previews = new Previews(`${base}/preview`, take);
    const instead = new Set(); // ids of components that show a preview
    let since = 0; // when a slider was last moved
    let rest = 0;
    let wait = 0;

    const values = () => Object.fromEntries(names.map((name) => [name, sliders[name].sent()]).filter(([, sent]) => sent !== null));

    function say(text, state) {
      setText(words, text);
      words.title = text;
      row.dataset.state = state;
    }

    const movedText = () =>
      names
        .filter((name) => sliders[name].sent() !== null)
        .map((name) => `${name === "alpha" ? "alpha " : ""}${sliders[name].text()}`)
        .join(", ");
    const sayPreview = () => say(`Preview at ${movedText()}, not saved`, "preview");

    /** `state`: "" of the run itself; "moving" while the answers are those of other settings, "answering", "whole". */
    function show(state) {
      save.hidden = back.hidden = !state;
      const above = document.getElementById("verdict");
      // Its sentence changes, and the sliders below must not move up.
      if (above && !(state && document.body.dataset.preview)) above.style.minHeight = state ? `${above.offsetHeight}px` : "";
      document.body.dataset.preview = state;
    }

    function reset() {
      clearTimeout(rest);
      clearTimeout(wait);
      previews.stop();
      names.forEach((name) => sliders[name].reset());
      replaceKept(null);
      for (const id of instead) showInstead(id, null);
      show("");
      say(IDLE, "idle");
    }

    /** `isForCharts`: all else is shown already. */
    function ask(until, isForCharts = false) {
      const figures = [...document.querySelectorAll(`#${CHARTS} [data-wanted]`)].map((node) => node.getAttribute("data-wanted"));
      previews.ask({ values: values(), until, figures, isForCharts });
    }

    /** Charts came into sight that the preview did not bring. */
    function wanted() {
      const isWhole = document.body.dataset.preview === "whole";
      if (Object.keys(values()).length) ask(isWhole ? "step" : "answers", isWhole);
    }

    function moved(isHeld) {
      clearTimeout(rest);
      clearTimeout(wait);
      since = performance.now();
      if (Object.keys(values()).length === 0) {
        reset();
        return;
      }
      show("moving");
      sayPreview();
      ask(isHeld ? "kept" : "answers");
      if (isHeld) rest = setTimeout(ask, REST_MS, "step");
      wait = setTimeout(say, WAIT_MS, "Waiting for the model …", "waiting");
    }

    function take(line, { values: wanted, until, isForCharts }) {
      clearTimeout(wait);
      if (isForCharts) {
        if (line.shown?.[CHARTS]) showInstead(CHARTS, line.shown[CHARTS]);
        return;
      }
      if (line.progress) {
        const { words: what, fraction } = line.progress;
        say(`${what}${fraction ? ` (${Math.round(fraction * 100)} %)` : ""} …`, "reading");
      }
      if (line.kept) {
        sayPreview();
        replaceKept(
          Object.fromEntries(line.kept.map(([index, text]) => [index, Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0))])),
        );
        const from = since;
        requestAnimationFrame(() =>
          requestAnimationFrame(() =>
            Object.assign(row.dataset, { shown: JSON.stringify(wanted), ms: (performance.now() - from).toFixed(0) }),
          ),
        );
      }
      for (const [id, shown] of Object.entries(line.shown ?? {})) {
        instead.add(id);
        showInstead(id, shown);
        if (id !== ANSWERS) continue;
        row.dataset.answers = JSON.stringify(wanted);
        show("answering");
      }
      if (line.error) say(line.error, "failed");
      if (line.end && until === "answers") {
        show("whole");
        setText(spoken, words.textContent);
      }
    }

    async function keep() {
      save.disabled = true;
      try {
        const { slug } = await (await post(`${base}/fork`, { values: values() })).json();
        const page = new URL(location.href);
        page.searchParams.set("id", slug);
        page.hash = "";
        location.assign(page);
      } catch (error) {
        say(error.message, "failed");
        save.disabled = false;
      }
    }

    row.addEventListener("keydown", (event) => event.key === "Escape" && reset());
    document.addEventListener("ckv-wanted", wanted);
    say(IDLE, "idle");
    stop = () => {
      document.removeEventListener("ckv-wanted", wanted);
      reset();
    };
  }

  return (value) => {
    const shape = JSON.stringify(value ?? null);
    if (shape === drawn) return;
    drawn = shape;
    stop();
    stop = () => {};
    row.hidden = !value;
    if (value) build(value);
  };
}
