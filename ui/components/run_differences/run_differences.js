// Saved runs side by side: figures, differing settings, then tokens and kept sets per variant.
// Variants are paired by method; what the runs of a pair do not have in common stands with them.

import { list, make, onValue, regimeMark, scroller, specParts, str, tableHead, whole } from "../../../assets/scripts/dom.js";

const name = (index) => String.fromCharCode(65 + index);
const heading = (text) => make("h3", { text });

function grid(label, head, rows) {
  const named = ({ spec, regime }) =>
    make("th", { scope: "rowgroup", colspan: String(head.length) }, make("code.ckv-spec", specParts(spec)), regimeMark(regime));
  const cell = (first, text) => make("td.ckv-kept-apart", first === "variants" ? specParts(text) : str(text));
  const row = ([first, ...cells]) => make("tr", make("th", { scope: "row", text: first }), ...cells.map((text) => cell(first, text)));
  // A row of one cell is the name of those below it.
  const body = rows.map((cells) => (cells.length > 1 ? row(cells) : make("tr", named(cells[0]))));
  return scroller(label, make("table.ckv-table.ckv-tight", tableHead(...head), make("tbody", body)));
}

function generated(tokens, differs) {
  const marked = new Set(differs);
  return make("p.ckv-generated", { dir: "auto" }, [
    list(tokens).map((text, at) =>
      marked.has(at) ? make("mark.ckv-differs", { text: str(text), title: `Token ${at + 1} differs` }) : str(text),
    ),
  ]);
}

function positions(label, found) {
  const shown = list(found.tokens)
    .map(([at, text]) => `${at} ${JSON.stringify(str(text))}`)
    .join(", ");
  const rest = found.count > found.tokens.length ? `, and ${whole(found.count - found.tokens.length)} more` : "";
  return make("p", `${label}: ${whole(found.count)}${found.count ? ` (${shown}${rest})` : ""}`);
}

function kept(other, base) {
  const found = other.kept;
  if (!found) return make("p.ckv-subdued", "No kept sets to compare.");
  if (found.equal) return make("p", "Kept sets: equal, entry by entry.");
  const rows = list(found.jaccard).map((share, layer) => [`Layer ${layer}`, share.toFixed(3)]);
  return make("div", [
    make("p", "Kept sets differ."),
    positions(`Positions that some head keeps in ${name(base)} and none in ${name(other.run)}`, found.only_base),
    positions(`Positions that some head keeps in ${name(other.run)} and none in ${name(base)}`, found.only_other),
    make("details", make("summary", "Overlap (Jaccard) per layer"), grid("Overlap per layer", ["Layer", "Jaccard"], rows)),
  ]);
}

/** What each run has of its own where the settings differ. */
function differing(texts) {
  return list(texts).flatMap((text, at) => (text ? [`${name(at)}: ${text}`] : []));
}

/** Variants that no other run has anything like. */
function footnote(alone) {
  return make("p.ckv-hint.ckv-alone", [
    `Only in ${name(alone.run)}: `,
    ...list(alone.specs).flatMap((spec, at) => [at ? ", " : null, make("code.ckv-spec", str(spec))]),
    ".",
  ]);
}

function variant(row) {
  const others = list(row.others);
  const parts = [
    make("p.ckv-subdued", `Generated in ${name(row.base)}:`),
    generated(row.tokens, []),
    ...others.flatMap((other) => [
      make("p", [
        other.first === null
          ? `${name(other.run)} against ${name(row.base)}: generated tokens equal, one by one.`
          : `${name(other.run)} against ${name(row.base)}: the first differing token is number ${other.first + 1}; tokens that differ are underlined.`,
      ]),
      other.first === null ? null : generated(other.tokens, other.differs),
      kept(other, row.base),
    ]),
  ];
  const same = others.every((other) => other.first === null && (!other.kept || other.kept.equal));
  return make("details.ckv-panel", { open: !same }, [
    make("summary", [
      make("strong", str(row.label)),
      " ",
      make("span.ckv-hint", same ? "equal" : "differs"),
      make("code.ckv-spec", str(row.spec)),
      differing(row.differs).length ? make("span.ckv-hint", ` ${differing(row.differs).join("; ")}`) : null,
    ]),
    ...parts.filter(Boolean),
  ]);
}

export default function mount(host) {
  const { root } = host;
  onValue(host, (value) => {
    if (!value) {
      root.replaceChildren();
      return;
    }
    const runs = list(value.runs);
    const names = runs.map((_, index) => name(index));
    const settings = list(value.settings);
    const figures = list(value.figures).flatMap((row) => [
      [row],
      ...(list(row.differs).some(Boolean) ? [["Differs in", ...row.differs.map((text) => text || "–")]] : []),
      ...list(value.figure_names).map((figure, at) => [figure, ...row.cells.map((cells) => cells[at])]),
    ]);
    root.replaceChildren(
      make("ul.ckv-compared", [
        runs.map((run, index) =>
          make("li", [
            `${name(index)}: `,
            make("a.ckv-link", { href: `/run?id=${encodeURIComponent(run.slug)}`, text: str(run.title) || run.slug }),
            ` (${run.state})`,
          ]),
        ),
      ]),
      heading("Figures"),
      value.head ? make("p.ckv-regimes", str(value.head)) : "",
      figures.length ? grid("Figures", ["Variant and figure", ...names], figures) : make("p", "These runs have no method in common."),
      ...list(value.alone).map(footnote),
      heading("Settings that differ"),
      settings.length
        ? grid(
            "Settings that differ",
            ["Setting", ...names],
            settings.map((row) => [row.name, ...row.values]),
          )
        : make("p", "None: these runs were asked the same and ran on the same versions."),
      heading(value.same_prompt ? "Variants, token by token" : "Variants"),
      ...(value.same_prompt
        ? list(value.variants).map(variant)
        : [
            make("p", [
              value.same_prompt === null
                ? "One of these runs has no tokens yet."
                : "The prompts differ, so tokens cannot be set against one another; the figures can.",
            ]),
          ]),
    );
  });
}
