// Progress of a run: state, stages with their times, a bar, what happens now.

import { list, make, milliseconds, onValue, seconds, setText, str, tag } from "../../../assets/scripts/dom.js";

const STATE_LABELS = {
  idle: "Ready",
  queued: "Queued",
  running: "Running",
  stopping: "Stopping",
  done: "Done",
  unfinished: "Unfinished",
  failed: "Failed",
  cancelled: "Cancelled",
};
const STATE_SIGNS = { idle: "○", queued: "◷", running: "▶", stopping: "▶", done: "✓", unfinished: "■", failed: "✕", cancelled: "■" };

/** One clear line: the reason of a failure, the queue, or what happens now. */
function sentenceOf(value) {
  if (value.state === "failed" || value.state === "cancelled") return str(value.reason);
  if (value.state === "queued" && !value.detail) {
    const ahead = Number(value.queue_ahead) || 0;
    const who = ahead === 1 ? "1 run is" : `${ahead} runs are`;
    return ahead ? `${who} ahead of this one; it starts by itself.` : "Starts next.";
  }
  return str(value.detail);
}

function stageItem({ state, label, ms }) {
  const [sign, tone] = { done: ["✓", "ckv-good"], active: ["▸", ""], waiting: ["·", ""] }[state];
  const look = { class: state === "waiting" ? "ckv-subdued" : "", "aria-current": state === "active" ? "step" : null };
  return make("li.ckv-row.ckv-stage", look, [
    make("span", { class: tone, "aria-hidden": "true", text: sign }),
    make("span", str(label)),
    make("span.ckv-offscreen", `, ${state}`),
    make("span.ckv-num.ckv-subdued", Number.isFinite(ms) ? milliseconds(ms) : ""),
  ]);
}

export default function mount(host) {
  const { root, props } = host;
  const sign = make("span.ckv-status-sign", { "aria-hidden": "true" });
  const stateName = make("strong.ckv-status-name");
  const sentence = make("span");
  const elapsed = make("span.ckv-status-time.ckv-num.ckv-subdued");
  const stages = make("ol.ckv-row.ckv-stages.ckv-small", { "aria-label": "Stages" });
  const bar = make("progress.ckv-bar", { max: "1", "aria-label": "Progress of this stage" });
  const chips = make("div.ckv-row.ckv-chips");
  const panel = make("div.ckv-status.ckv-panel.ckv-stack", { hidden: true }, [
    make(
      "div.ckv-row.ckv-status-line",
      make("div.ckv-row.ckv-status-live", { role: "status", "aria-live": "polite" }, sign, stateName, sentence),
      elapsed,
    ),
    bar,
    stages,
    chips,
  ]);
  root.append(panel);

  // The server speaks only when something happens, which during a long prefill may take minutes.
  let came = 0;
  let ticking = 0;
  function drawTime() {
    const waits = props.value?.state === "running";
    const known = Number(props.value?.elapsed_s);
    const since = waits ? (performance.now() - came) / 1000 : 0;
    setText(elapsed, known ? seconds(known + since) : "");
    clearTimeout(ticking);
    if (waits && root.isConnected) ticking = setTimeout(drawTime, 1000);
  }

  let stagesDrawn = "";
  onValue(host, (value) => {
    came = performance.now();
    drawTime();
    panel.hidden = value === null;
    if (value === null) return;
    const state = STATE_LABELS[value.state] ? value.state : "idle";
    panel.dataset.state = state;
    setText(sign, STATE_SIGNS[state]);
    setText(stateName, STATE_LABELS[state]);
    setText(sentence, sentenceOf(value));
    bar.hidden = value.state !== "running";
    if (Number.isFinite(value.fraction)) bar.value = value.fraction;
    else bar.removeAttribute("value");
    const shape = JSON.stringify([state, value.stages, value.chips]);
    if (shape === stagesDrawn) return;
    stagesDrawn = shape;
    stages.replaceChildren(...list(value.stages).map(stageItem));
    // Of a run that was cut off nothing is known of its stages: they are not still to come.
    const over = state === "failed" || state === "cancelled";
    stages.hidden = !list(value.stages).some((stage) => !over || stage.state === "done");
    chips.replaceChildren(...list(value.chips).map((text) => tag(text)));
    chips.hidden = list(value.chips).length === 0;
  });
}
