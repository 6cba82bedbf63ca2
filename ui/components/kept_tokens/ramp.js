// Colour ramps of the heat maps as tables of packed pixels, and their legends.

import { make, percent } from "../../../assets/scripts/dom.js";
import { isDark } from "../../../assets/scripts/marks.js";

const RAMP_STEPS = 256;
function channels(hex) {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

/** Interpolate stops to 256 pixels; the words are little-endian RGBA, as ImageData wants. */
export function rampOf(stops) {
  const colors = stops.map(channels);
  const ramp = new Uint32Array(RAMP_STEPS);
  for (let step = 0; step < RAMP_STEPS; step += 1) {
    const at = (step / (RAMP_STEPS - 1)) * (colors.length - 1);
    const low = Math.min(Math.floor(at), colors.length - 2);
    const [red, green, blue] = colors[low].map((from, i) => Math.round(from + (colors[low + 1][i] - from) * (at - low)));
    ramp[step] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
  return ramp;
}

/** Step of the ramp -> pixel of the line that marks it: none from the middle on. */
export function signLines() {
  const [ink, ground] = isDark() ? [0xffffffff, 0xff271811] : [0xff271811, 0xffffffff];
  const middle = RAMP_STEPS / 2;
  return Uint32Array.from({ length: RAMP_STEPS }, (_, step) => (step >= middle ? 0 : step < middle / 2 ? ground : ink));
}

/** The pixels of a canvas that is at least this wide, as words, and how to put them there. */
export function pixelsOf(canvas, columns, rows) {
  if (canvas.width < columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  return { pixels: new Uint32Array(image.data.buffer), put: () => pen.putImageData(image, 0, 0) };
}

// Most entries are evicted, so shares near zero matter most: the square root spreads them.
export const densityStep = (share) => Math.round(Math.sqrt(share) * (RAMP_STEPS - 1));
export const differenceStep = (gap) => Math.round((Math.sign(gap) * Math.sqrt(Math.abs(gap)) + 1) * 0.5 * (RAMP_STEPS - 1));

function gradient(stops) {
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** A bar with ticks; `ticks` are [place from 0 to 1, text]. */
export function legend(title, ticks) {
  const strip = make("div.ckv-ramp");
  const node = make("div.ckv-legend", [
    make("span", { text: title }),
    make("div.ckv-ramp-box", [
      strip,
      make("div.ckv-ramp-ticks.ckv-num", [
        ticks.map(([place, text]) => {
          const tick = make("span", { text });
          tick.style.left = `${place * 100}%`;
          return tick;
        }),
      ]),
    ]),
  ]);
  return {
    node,
    paint: (stops) => {
      strip.style.background = gradient(stops);
    },
  };
}

export const DENSITY_TICKS = [0, 0.05, 0.25, 0.5, 1].map((share) => [Math.sqrt(share), percent(share).replace("5.0", "5")]);
