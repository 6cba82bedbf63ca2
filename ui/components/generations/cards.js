// A grid of cards, one per variant, each with its text; grows in place while it streams.

import { balanceColumns, copyButton, list, make, setText, showText, specParts, str, tag } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { ForcedStrip, visible } from "./forced_strip.js";

const RESTING = new Set(["", "waiting", "queued", "done", "failed", "cancelled"]);
const OUTCOMES = { answered: ["✓", "good"], missed: ["✕", "warn"], cut: ["…", "warn"] };
const STOPS = { eos: "stopped at EOS", length: "reached the token limit" };

function newCard({ index, look }) {
  const card = {
    before: document.createTextNode(""),
    diff: make("mark.ckv-diff"),
    after: make("span.ckv-after"),
    name: make("span"),
    spec: make("code.ckv-spec"),
    status: make("span.ckv-hint"),
    chips: make("div.ckv-row.ckv-chips"),
    verdict: make("p.ckv-hint.ckv-verdict"),
    strip: new ForcedStrip(),
    chipsDrawn: "",
    text: "",
  };
  card.body = make("div.ckv-text", { tabindex: "0", dir: "auto" }, card.before, card.diff, card.after);
  card.copy = copyButton("Copy", () => card.text);
  // A group: a landmark per variant and question would be too many, and two may share a name.
  card.node = make("div.ckv-card.ckv-stack", { role: "group", "data-variant": str(index) }, [
    make("header.ckv-row.ckv-card-head", make("h3.ckv-name", marker(look), make("span", card.name, card.spec)), card.status, card.copy),
    card.chips,
    card.body,
    card.strip.node,
    card.verdict,
  ]);
  card.node.style.borderTop = `3px ${/-(open|dot)/.test(look.symbol) ? "dashed" : "solid"} ${look.color}`;
  return card;
}

function drawText(card, value) {
  const tokens = list(value.token_texts).map(str);
  const at = Number.isInteger(value.first_difference) ? value.first_difference : null;
  // Asking where a text is scrolled to lays out the page; a new card's is not.
  const stick = card.text !== "" && card.body.scrollTop + card.body.clientHeight > card.body.scrollHeight - 24;
  card.text = tokens.join("");
  const before = at === null ? card.text : tokens.slice(0, at).join("");
  // Appending keeps what the reader has selected while text streams in.
  if (before.startsWith(card.before.data)) card.before.appendData(before.slice(card.before.length));
  else card.before.data = before;
  card.diff.hidden = at === null;
  if (at !== null) {
    setText(card.diff, visible(tokens[at]));
    card.diff.title = `First token that differs from the reference: token ${at + 1}`;
  }
  setText(card.after, at === null ? "" : tokens.slice(at + 1).join(""));
  if (stick) card.body.scrollTop = card.body.scrollHeight;
}

/** The caption above the cards states once what all texts have in common. */
function captionOf(values) {
  const [stop, ...others] = new Set(values.map((value) => STOPS[value.stopped]));
  const parts = [];
  if (stop && others.length === 0 && values.length > 1) parts.push(`All texts ${stop}.`);
  if (values.some((value) => value.forced))
    parts.push("Strip under a text: teacher-forced on the full cache's own text; bar height is KL, ✕ another first choice.");
  return parts.join(" ");
}

function verdictOf(value, running, caption) {
  const parts = [];
  if (value.reference) parts.push("Reference of the others.");
  else if (Number.isInteger(value.first_difference)) parts.push(`Differs from token ${value.first_difference + 1} on.`);
  else if (!running && value.stopped) parts.push("Same tokens as the reference.");
  const stop = STOPS[value.stopped];
  if (stop) parts.push(`${list(value.token_texts).length} tokens${caption.includes(stop) ? "" : `, ${stop}`}.`);
  return parts.join(" ");
}

function drawCard(card, value, caption) {
  const status = str(value.status);
  const running = !value.stopped && !RESTING.has(status.toLowerCase());
  const label = str(value.label);
  setText(card.name, label);
  if (card.spec.textContent !== str(value.spec)) card.spec.replaceChildren(...specParts(value.spec));
  setText(card.status, status === "done" ? "" : status);
  card.node.setAttribute("aria-label", label);
  card.body.setAttribute("role", running ? "log" : "group");
  card.body.setAttribute("aria-label", `Text of ${label}`);
  const shape = JSON.stringify([value.chips, value.answer]);
  if (shape !== card.chipsDrawn) {
    card.chipsDrawn = shape;
    const [sign, tone] = OUTCOMES[str(value.answer).split(",")[0]] ?? [];
    const answer = sign ? [`${sign} ${value.answer}`, tone] : null;
    card.chips.replaceChildren(...(answer ? [tag(...answer)] : []), ...list(value.chips).map((text) => tag(text)));
  }
  drawText(card, value);
  showText(card.verdict, verdictOf(value, running, caption));
  card.strip.show(value.forced ?? null, label);
}

/** Cards by variant; nodes stay where they are while their text grows. */
export class CardGrid {
  constructor() {
    this.caption = make("p.ckv-hint.ckv-caption");
    this.grid = make("div.ckv-cards");
    this.node = make("div", this.caption, this.grid);
    this.cards = new Map();
  }

  draw(wanted) {
    this.node.hidden = wanted.length === 0;
    const caption = captionOf(wanted);
    showText(this.caption, caption);
    const seen = new Set();
    for (const item of wanted) {
      seen.add(item.index);
      if (!this.cards.has(item.index)) this.cards.set(item.index, newCard(item));
      drawCard(this.cards.get(item.index), item, caption);
    }
    for (const index of [...this.cards.keys()]) if (!seen.has(index)) this.cards.delete(index);
    const nodes = wanted.map((item) => this.cards.get(item.index).node);
    const { children } = this.grid;
    const same = nodes.length === children.length && nodes.every((node, i) => children[i] === node);
    if (!same) this.grid.replaceChildren(...nodes);
    balanceColumns(this.grid, nodes.length);
  }
}
