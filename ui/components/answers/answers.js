// What every method wrote of one text, its outcome and what it kept; choosing a row drives what stands below.

import { list, make, onValue, regimesHead, showText } from "../../../assets/scripts/dom.js";
import { liveRow } from "../live/live.js";
import { AnswerTable } from "./table.js";

export default function mount(host) {
  const empty = make("p.ckv-empty", "The answers appear here, one row a method.");
  const table = new AnswerTable("What each method wrote", { follows: true });
  const live = make("div.ckv-live", { hidden: true });
  const drawSliders = liveRow(live);
  const place = make("div.ckv-live-place", live);
  const card = make("div.ckv-card.ckv-flush", place, table.node);
  const note = make("p.ckv-hint.ckv-answers-note");
  const regimes = regimesHead();
  host.root.append(empty, card, regimes, note);

  // Sliders that were scrolled past stay in reach of the maps and charts that follow them.
  new IntersectionObserver(([{ isIntersecting, boundingClientRect: box }]) => {
    live.classList.toggle("ckv-afloat", !isIntersecting && box.height > 0 && box.top < 0);
  }).observe(place);

  onValue(host, (value) => {
    empty.hidden = list(value?.rows).length > 0;
    card.hidden = !empty.hidden;
    showText(note, value?.note);
    showText(regimes, value?.head);
    if (!value) return;
    if (!value.preview) drawSliders(value.live);
    table.draw(value);
  });
  window.addEventListener("hashchange", () => table.mark());
}
