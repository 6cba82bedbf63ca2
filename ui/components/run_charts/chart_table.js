// A Plotly figure as a table, so that every chart can be read without its picture.

import { list, make, scroller, str, tableHead, whole } from "../../../assets/scripts/dom.js";

const MOST_ROWS = 500;
const ARRAYS = {
  f4: Float32Array,
  f8: Float64Array,
  i1: Int8Array,
  u1: Uint8Array,
  i2: Int16Array,
  u2: Uint16Array,
  i4: Int32Array,
  u4: Uint32Array,
};

/** Values as they are or as plotly.py packs them; rows of values where they have two dimensions. */
function values(given) {
  if (!given?.bdata) return list(given);
  const bytes = Uint8Array.from(atob(given.bdata), (sign) => sign.charCodeAt(0));
  const flat = [...new ARRAYS[given.dtype](bytes.buffer)];
  const [rows, columns] = str(given.shape).split(",").map(Number);
  return columns ? Array.from({ length: rows }, (_, at) => flat.slice(at * columns, (at + 1) * columns)) : flat;
}

/** Names are escaped for Plotly, which reads some markup; here they are text. */
export const plain = (text) =>
  str(text)
    .replace(/<br>/g, " ")
    .replace(/&(lt|gt|amp);/g, (_, name) => ({ lt: "<", gt: ">", amp: "&" })[name]);

function shown(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : plain(value);
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) >= 1000 ? whole(value) : String(Number(value.toPrecision(4)));
}

/** What an axis calls its values: value -> text; empty where it counts. */
function namesOf(axis) {
  const at = values(axis?.tickvals);
  return new Map(list(axis?.ticktext).map((text, place) => [at[place], text]));
}

/** Points of a line or of bars: {name, points: [{at, value, words, ends}]} with `at` on the axis of rows. */
function series(trace) {
  const [x, y] = [values(trace.x), values(trace.y)];
  const places = x.length ? x : y.map((_, at) => at);
  const [ats, found] = trace.orientation === "h" ? [y, x] : [places, y];
  const [more, less] = [values(trace.error_y?.array), values(trace.error_y?.arrayminus)];
  const words = list(trace.customdata);
  return {
    name: plain(trace.name),
    points: ats.map((at, place) => ({
      at,
      value: found[place],
      words: typeof words[place] === "string" ? plain(words[place]) : null,
      ends: Number.isFinite(more[place]) ? [found[place] - (less[place] ?? more[place]), found[place] + more[place]] : null,
    })),
  };
}

/** Rows and columns of lines and bars: a row a place on the axis, a column a series. */
function seriesTable(traces, layout) {
  const isFlat = traces.some((trace) => trace.orientation === "h");
  const [rowAxis, valueAxis] = isFlat ? [layout.yaxis, layout.xaxis] : [layout.xaxis, layout.yaxis];
  const [rowNames, valueNames] = [namesOf(rowAxis), namesOf(valueAxis)];
  const unit = str(valueAxis?.ticksuffix);
  const all = traces.map(series).filter(({ points }) => points.length);
  const cell = ({ value, words, ends }) => {
    if (valueNames.size) return words ?? shown(valueNames.get(value));
    return shown(value) + unit + (ends ? ` (${shown(ends[0])} to ${shown(ends[1])})` : "");
  };
  const rowName = ({ at, words }) => (rowNames.has(at) ? shown(rowNames.get(at)) : valueNames.size ? shown(at) : (words ?? shown(at)));
  const [rowTitle, valueTitle] = [rowAxis, valueAxis].map((axis) => plain(axis?.title?.text));
  const rows = new Map();
  all.forEach(({ points }, column) => {
    for (const point of points) {
      const row = rows.get(point.at) ?? { name: rowName(point), at: point.at, cells: all.map(() => "–") };
      row.cells[column] = cell(point);
      rows.set(point.at, row);
    }
  });
  const count = all.reduce((sum, { points }) => sum + points.length, 0);
  if (all.length > 1 && count < 0.4 * rows.size * all.length) {
    // Each has places of its own: a line a point.
    const lines = all.flatMap(({ name, points }) => points.map((point) => ({ name, cells: [rowName(point), cell(point)] })));
    return { heads: ["", rowTitle, valueTitle], lines };
  }
  const lines = [...rows.values()].sort((a, b) => (typeof a.at === "number" ? a.at - b.at : 0));
  return { heads: [rowTitle, ...all.map(({ name }) => name || valueTitle)], lines };
}

/** Cells of a heat map; those with [n, text, ..., address] say so, and lead to `addressOf` it. */
function heatTable(map, layout, addressOf) {
  const grid = values(map.z);
  const [across, down] = [values(map.x), values(map.y)];
  const cell = (value, point) => {
    if (!Array.isArray(point)) return point === undefined ? shown(value) : "–";
    const [n, text] = point;
    const href = addressOf(point);
    return [href ? make("a.ckv-link", { href, text }) : str(text), ` (n = ${n})`];
  };
  const lines = grid.map((row, at) => ({
    name: shown(down[at] ?? at),
    cells: row.map((value, place) => cell(value, map.customdata && (list(map.customdata[at])[place] ?? null))),
  }));
  const axes = [layout.yaxis, layout.xaxis].map((axis) => plain(axis?.title?.text)).join(" / ");
  return { heads: [axes, ...list(grid[0]).map((_, at) => shown(across[at] ?? at))], lines };
}

/**
 * The table of a figure; null where it shows nothing.
 *
 * @param {object} figure as plotly.py writes it
 * @param {string} title
 * @param {(point: any[]) => string} addressOf a page that a cell leads to, empty for none
 */
export function chartTable({ data, layout }, title, addressOf) {
  const map = list(data).find((trace) => trace.type === "heatmap");
  const traces = list(data).filter((trace) => trace.mode !== "none" && trace.hoverinfo !== "skip");
  if (!map && traces.length === 0) return null;
  const { heads, lines } = map ? heatTable(map, layout, addressOf) : seriesTable(traces, layout);
  const rows = lines
    .slice(0, MOST_ROWS)
    .map(({ name, cells }) =>
      make("tr", make("th", { scope: "row", text: name }), ...cells.map((each) => make("td.ckv-num.ckv-right", each))),
    );
  const [first, ...others] = heads;
  const head = tableHead(first, ...others.map((text) => ({ text, class: "ckv-right" })));
  const cut =
    lines.length > MOST_ROWS ? make("p.ckv-hint", `The first ${whole(MOST_ROWS)} of ${whole(lines.length)}; the CSV has all.`) : null;
  return make("div", cut, scroller(`${title}, as a table`, make("table.ckv-table.ckv-tight", head, make("tbody", rows))));
}
