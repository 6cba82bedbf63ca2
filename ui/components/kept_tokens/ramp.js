// Colour ramps of the heat maps as tables of packed pixels, and their legends.

import { make, percent } from "../../../assets/scripts/dom.js";
import { isDark } from "../../../assets/scripts/marks.js";

const RAMP_STEPS = 256;

/** Stops interpolated to 256 pixels, the words that ImageData holds. */
export function rampOf(stops) {
  const pen = make("canvas", { width: RAMP_STEPS, height: 1 }).getContext("2d");
  const gradient = pen.createLinearGradient(0.5, 0, RAMP_STEPS - 0.5, 0);
  stops.forEach((stop, at) => gradient.addColorStop(at / (stops.length - 1), stop));
  pen.fillStyle = gradient;
  pen.fillRect(0, 0, RAMP_STEPS, 1);
  return new Uint32Array(pen.getImageData(0, 0, RAMP_STEPS, 1).data.buffer);
}

/** Step of the ramp -> pixel of the line that marks it: none from the middle on. */
export function signLines() {
  const [ink, ground] = isDark() ? [0xffffffff, 0xff271811] : [0xff271811, 0xffffffff];
  const middle = RAMP_STEPS / 2;
  return Uint32Array.from({ length: RAMP_STEPS }, (_, step) => (step >= middle ? 0 : step < middle / 2 ? ground : ink));
}

// Most entries are evicted, so shares near zero matter most: the square root spreads them.
export const densityStep = (share) => Math.round(Math.sqrt(share) * (RAMP_STEPS - 1));
export const differenceStep = (gap) => Math.round((Math.sign(gap) * Math.sqrt(Math.abs(gap)) + 1) * 0.5 * (RAMP_STEPS - 1));

/** A bar with ticks, each [place from 0 to 1, text]; `paint` gives it the colours of stops. */
export function legend(title, ticks) {
  const strip = make("div.ckv-ramp");
  const places = ticks.map(([place, text]) => make("span", { text, style: `left: ${place * 100}%` }));
  const node = make("div.ckv-legend", [
    make("span", { text: title }),
    make("div.ckv-ramp-box", strip, make("div.ckv-ramp-ticks.ckv-num", places)),
  ]);
  const paint = (stops) => {
    strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  };
  return { node, paint };
}

export const DENSITY_TICKS = [0, 0.05, 0.25, 0.5, 1].map((share) => [Math.sqrt(share), percent(share).replace("5.0", "5")]);
