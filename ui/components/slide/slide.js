// A slider beside a text field: it follows what the field holds, and writes into it.

import { list, make, onValue, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const { root, props } = host;
  const { field, label, least, most, step, unit, ticks, hint } = props.ruler;
  const range = make("input.ckv-range", {
    type: "range",
    min: "0",
    max: most,
    step,
    tabindex: "-1",
    "aria-label": `${label} slider`,
    oninput: drag,
    onchange: drop,
  });
  const marks = list(ticks).map((text) => make("span", str(text)));
  root.append(
    range,
    make("div.ckv-hint.ckv-slide-ticks", { "aria-hidden": "true", hidden: !marks.length }, marks),
    make("p.ckv-hint", { hidden: !hint, text: str(hint) }),
  );
  /** @type {() => HTMLInputElement} */
  const box = () => document.querySelector(`#${field} :is(input, textarea)`);
  const fill = () => range.style.setProperty("--at", String(Number(range.value) / most));

  /** Of several values it shows the first and rests, and of another unit it rests. */
  function follow(text) {
    const [first, ...others] = str(text).split(/[,;]/);
    const value = first.trim().endsWith(unit) ? Number.parseFloat(first) : Number.NaN;
    range.disabled = others.length > 0 || Number.isNaN(value) || value > most;
    range.title = range.disabled ? "Type one valid value in the field to use the slider." : "";
    if (!Number.isNaN(value)) range.value = String(value);
    fill();
  }

  function drag() {
    const value = Math.max(least, Number(range.value));
    const number = box();
    number.value = `${Number(value.toFixed(4))}${unit}`;
    number.dispatchEvent(new Event("input", { bubbles: true }));
    fill();
  }

  function drop() {
    box().dispatchEvent(new Event("blur")); // as if the field had been left, which the server hears of
  }

  // One stop of the Tab key for both: in the field, up and down move the slider.
  document.addEventListener("keydown", (event) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!way || range.disabled || event.target !== box()) return;
    event.preventDefault();
    if (way > 0) range.stepUp();
    else range.stepDown();
    drag();
  });

  onValue(host, (value) => follow(value?.text));
}
