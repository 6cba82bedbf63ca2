// Colour ramps of the heat maps as tables of packed pixels, and their legends.

import { make } from "../../../assets/scripts/dom.js";
import { isDark } from "../../../assets/scripts/marks.js";

const RAMP_STEPS = 256;
const LEAST_CONTRAST = 4.7;

/** Stops interpolated to 256 pixels, the words that ImageData holds. */
export function rampOf(stops) {
  const pen = make("canvas", { width: RAMP_STEPS, height: 1 }).getContext("2d");
  const gradient = pen.createLinearGradient(0.5, 0, RAMP_STEPS - 0.5, 0);
  stops.forEach((stop, at) => gradient.addColorStop(at / (stops.length - 1), stop));
  pen.fillStyle = gradient;
  pen.fillRect(0, 0, RAMP_STEPS, 1);
  return new Uint32Array(pen.getImageData(0, 0, RAMP_STEPS, 1).data.buffer);
}

export const DEEPEST = 0.52;
/** How much of its colour a token gets, in percent, which this share of the heads keeps. */
export const depthOf = (share) => (share ? `${(3 + 100 * (DEEPEST - 0.03) * Math.sqrt(share)).toFixed(0)}%` : "0%");

/** Red, green, blue of `#rrggbb`. */
const channels = (color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));

/** Relative luminance, as WCAG defines it. */
function luminance(rgb) {
  const [red, green, blue] = rgb.map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The hue that shades a text, with so much of the ground in it that `ink` is read on `deepest` of it. */
export function shadeColor(hue, ground, ink, deepest) {
  const [own, under, text] = [hue, ground, ink].map(channels);
  const mixed = (part) => own.map((each, at) => under[at] + (each - under[at]) * part);
  const contrast = (part) => {
    const [dark, light] = [luminance(mixed(part)), luminance(text)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  let part = 1;
  while (part > 0 && contrast(part * deepest) < LEAST_CONTRAST) part -= 0.02;
  return `rgb(${mixed(part).map(Math.round).join(" ")})`;
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

/** A bar between two words; `paint` gives it the colours of stops. */
export function legend(from, to) {
  const strip = make("span.ckv-ramp", { "aria-hidden": "true" });
  const node = make("span.ckv-legend.ckv-hint", [make("span", { text: from }), strip, make("span", { text: to })]);
  const paint = (stops) => {
    strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  };
  return { node, paint };
}
