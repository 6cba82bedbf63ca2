// What came out of a run in one sentence, why, and with what caution; while it runs, how far it is.

import { list, make, onValue, regimesHead, setText, showText, str } from "../../../assets/scripts/dom.js";

/** The bar of one step; the steps before it are full. */
function stepNode({ share, label, fraction, is_now: isNow }) {
  const track = make("i");
  track.style.setProperty("--done", String(Math.min(1, Number(fraction) || 0)));
  const node = make("li.ckv-hint", { "aria-current": isNow ? "step" : null }, track, make("span", str(label)));
  node.style.flexGrow = String(100 * share); // below 1 in all they would leave room
  return node;
}

/** The first sentence is the headline; what follows it stands below. */
const sentencesOf = (text) => str(text).split(/(?<=\.) (?=[A-Z])/);

/** A number and its unit stay in one line. */
const tied = (text) => text.replace(/ (?=%|MiB|GiB|KiB)/g, "\u00a0");

function leftWords(seconds) {
  if (seconds < 90) return `about ${Math.max(1, Math.round(seconds))} s left`;
  return seconds < 5400 ? `about ${Math.round(seconds / 60)} min left` : `about ${(seconds / 3600).toFixed(1)} h left`;
}

export default function mount(host) {
  const { root } = host;
  const headline = make("p.ckv-verdict-headline");
  const lines = make("p.ckv-verdict-lines");
  const regimes = regimesHead();
  const rest = make("div.ckv-stack");
  const more = make("details.ckv-verdict-more", make("summary.ckv-link", "More about this"), rest);
  const steps = make("ol.ckv-steps", { "aria-label": "Stages" });
  const strip = make("section.ckv-verdict-strip", { "aria-label": "What came out", hidden: true }, [
    make("div", { role: "status" }, headline),
    steps,
    lines,
    regimes,
    more,
  ]);
  root.append(strip);

  // The server speaks only when something happens, which during a long prefill may take minutes.
  let shown = null;
  let came = 0;
  let ticking = 0;
  let stepsDrawn = "";
  function drawHeadline() {
    const value = shown;
    const since = (performance.now() - came) / 1000;
    const left = Number(value?.left_s) - since;
    const sentence = str(value?.sentence);
    const isGuess = sentence !== "" && value?.left_s !== null && left > 0.5;
    setText(headline, isGuess ? `${sentence.replace(/\.$/, "")}, ${leftWords(left)}.` : tied(sentence || sentencesOf(value?.headline)[0]));
    clearTimeout(ticking);
    if (isGuess && root.isConnected) ticking = setTimeout(drawHeadline, 1000);
  }

  onValue(host, (value) => {
    shown = value;
    came = performance.now();
    drawHeadline();
    strip.hidden = headline.textContent === "";
    strip.dataset.state = str(value?.state);
    const [causes, findings, cautions] = [value?.causes, value?.findings, value?.cautions].map(list);
    const further = [...sentencesOf(value?.headline).slice(1), causes[0] ?? findings[0], cautions[0]];
    const below = value?.sentence ? [str(value.headline)] : further.map(str);
    showText(lines, tied(below.filter(Boolean).join(" ")));
    showText(regimes, value?.regimes);
    document.body.classList.toggle("ckv-regimes-shown", !strip.hidden && Boolean(value?.regimes));
    const others = [...causes, ...findings, ...cautions].map(str).filter((text) => text && !below.includes(text));
    more.hidden = others.length === 0;
    rest.replaceChildren(...others.map((text) => make("p", text)));
    const shape = JSON.stringify(value?.steps);
    if (shape === stepsDrawn) return;
    stepsDrawn = shape;
    steps.hidden = list(value?.steps).length === 0;
    steps.replaceChildren(...list(value?.steps).map(stepNode));
  });
}
