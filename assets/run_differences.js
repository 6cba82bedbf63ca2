// Saved runs side by side: figures, differing settings, then tokens and kept sets per variant.
// Variants are paired by method; what the runs of a pair do not have in common stands with them.

const name = (index) => String.fromCharCode(65 + index);
const heading = (text) => make("h3", { text });

function grid(label, head, rows) {
  return make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": label },
    make("table", { class: "ckv-table ckv-tight" },
      make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", text })))),
      make("tbody", {}, ...rows.map(([first, ...cells]) => (cells.length
        ? make("tr", {}, make("th", { scope: "row", text: first }), ...cells.map((text) => make("td", { class: "ckv-kept-apart", text: str(text) })))
        // A row of one cell is the name of those below it.
        : make("tr", {}, make("th", { scope: "rowgroup", colspan: String(head.length) }, make("code", { class: "ckv-spec" }, ...specParts(first.spec)), regimeMark(first.regime))))))));
}

function generated(tokens, differs) {
  const marked = new Set(differs);
  return make("p", { class: "ckv-generated", dir: "auto" }, ...list(tokens).map((text, at) =>
    marked.has(at) ? make("mark", { class: "ckv-differs", text: str(text), title: `Token ${at + 1} differs` }) : document.createTextNode(str(text))));
}

function positions(label, found) {
  const shown = list(found.tokens).map(([at, text]) => `${at} ${JSON.stringify(str(text))}`).join(", ");
  const rest = found.count > found.tokens.length ? `, and ${whole(found.count - found.tokens.length)} more` : "";
  return make("p", { text: `${label}: ${whole(found.count)}${found.count ? ` (${shown}${rest})` : ""}` });
}

function kept(other, base) {
  const found = other.kept;
  if (!found) return make("p", { class: "ckv-subdued", text: "No kept sets to compare." });
  if (found.equal) return make("p", { text: "Kept sets: equal, entry by entry." });
  const rows = list(found.jaccard).map((share, layer) => [`Layer ${layer}`, share.toFixed(3)]);
  return make("div", {},
    make("p", { text: "Kept sets differ." }),
    positions(`Positions that some head keeps in ${name(base)} and none in ${name(other.run)}`, found.only_base),
    positions(`Positions that some head keeps in ${name(other.run)} and none in ${name(base)}`, found.only_other),
    make("details", {}, make("summary", { text: "Overlap (Jaccard) per layer" }), grid("Overlap per layer", ["Layer", "Jaccard"], rows)));
}

/** What each run has of its own where the settings differ. */
function differing(texts) {
  return list(texts).flatMap((text, at) => (text ? [`${name(at)}: ${text}`] : []));
}

/** Variants that no other run has anything like. */
function footnote(alone) {
  return make("p", { class: "ckv-hint ckv-alone" }, `Only in ${name(alone.run)}: `,
    ...list(alone.specs).flatMap((spec, at) => [at ? ", " : null, make("code", { class: "ckv-spec", text: str(spec) })]), ".");
}

function variant(row) {
  const others = list(row.others);
  const parts = [
    make("p", { class: "ckv-subdued", text: `Generated in ${name(row.base)}:` }), generated(row.tokens, []),
    ...others.flatMap((other) => [
      make("p", { text: other.first === null
        ? `${name(other.run)} against ${name(row.base)}: generated tokens equal, one by one.`
        : `${name(other.run)} against ${name(row.base)}: the first differing token is number ${other.first + 1}; tokens that differ are underlined.` }),
      other.first === null ? null : generated(other.tokens, other.differs),
      kept(other, row.base)])];
  const same = others.every((other) => other.first === null && (!other.kept || other.kept.equal));
  return make("details", { class: "ckv-panel", open: !same },
    make("summary", {}, make("strong", { text: str(row.label) }), " ", make("span", { class: "ckv-hint", text: same ? "equal" : "differs" }),
      make("code", { class: "ckv-spec", text: str(row.spec) }),
      differing(row.differs).length ? make("span", { class: "ckv-hint", text: ` ${differing(row.differs).join("; ")}` }) : null), ...parts.filter(Boolean));
}

onValue((value) => {
  if (!value) { root.replaceChildren(); return; }
  const runs = list(value.runs);
  const names = runs.map((_, index) => name(index));
  const settings = list(value.settings);
  const figures = list(value.figures).flatMap((row) => [[row],
    ...(list(row.differs).some(Boolean) ? [["Differs in", ...row.differs.map((text) => text || "–")]] : []),
    ...list(value.figure_names).map((figure, at) => [figure, ...row.cells.map((cells) => cells[at])])]);
  root.replaceChildren(
    make("ul", { class: "ckv-compared" }, ...runs.map((run, index) => make("li", {}, `${name(index)}: `,
      make("a", { class: "ckv-link", href: `/run?id=${encodeURIComponent(run.slug)}`, text: str(run.title) || run.slug }), ` (${run.state})`))),
    heading("Figures"),
    value.head ? make("p", { class: "ckv-regimes", text: str(value.head) }) : "",
    figures.length ? grid("Figures", ["Variant and figure", ...names], figures) : make("p", { text: "These runs have no method in common." }),
    ...list(value.alone).map(footnote),
    heading("Settings that differ"),
    settings.length ? grid("Settings that differ", ["Setting", ...names], settings.map((row) => [row.name, ...row.values])) : make("p", { text: "None: these runs were asked the same and ran on the same versions." }),
    heading(value.same_prompt ? "Variants, token by token" : "Variants"),
    ...(value.same_prompt ? list(value.variants).map(variant) : [make("p", { text: value.same_prompt === null ? "One of these runs has no tokens yet." : "The prompts differ, so tokens cannot be set against one another; the figures can." })]));
});
