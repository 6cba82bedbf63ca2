// The one tooltip of a page: words above what they explain, or below where there is no room.

import { clamp, make } from "./dom.js";

const tip = make("div.ckv-tip", { id: "ckv-tip", role: "tooltip", popover: "manual" });
let anchor = null;

function place() {
  if (!anchor) return;
  const [at, box] = [anchor.getBoundingClientRect(), tip.getBoundingClientRect()];
  tip.style.left = `${clamp(at.left + at.width / 2 - box.width / 2, 8, innerWidth - box.width - 8)}px`;
  tip.style.top = `${at.top - box.height - 6 > 8 ? at.top - box.height - 6 : at.bottom + 6}px`;
}

export function hideTip() {
  anchor?.removeAttribute("aria-describedby");
  anchor = null;
  if (tip.matches(":popover-open")) tip.hidePopover();
}

export function showTip(node, text) {
  if (!text || node === anchor) return;
  hideTip();
  // A landmark, which readers of the screen jump to; Gradio confines our styles to its container.
  if (!tip.isConnected) (document.querySelector("main") ?? document.body).append(tip);
  anchor = node;
  tip.textContent = text;
  anchor.setAttribute("aria-describedby", tip.id);
  tip.showPopover();
  place();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
document.addEventListener("scroll", place, { capture: true, passive: true });

/** A "?" that says what a name means on hover, focus or click; Escape closes it. */
export function helpButton(name, words) {
  const show = () => showTip(node, words);
  const listeners = { onmouseenter: show, onfocus: show, onclick: show, onmouseleave: hideTip, onblur: hideTip };
  const node = make("button.ckv-help", { text: "?", "aria-label": `What ${name} means: ${words}`, ...listeners });
  return node;
}
