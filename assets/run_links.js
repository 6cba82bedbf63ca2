// Where a run can be found and taken away: short link, files, form.

const short = make("a", { class: "ckv-link" });
const copy = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Copy link" });
const json = make("a", { class: "ckv-link", download: true, text: "Result (JSON)" });
const table = make("a", { class: "ckv-link", download: true, text: "Table (CSV)" });
const layers = make("a", { class: "ckv-link", download: true, text: "Layers (CSV)" });
const heads = make("a", { class: "ckv-link", download: true, text: "Heads (CSV)" });
const budgets = make("a", { class: "ckv-link", download: true, text: "Budgets (CSV)" });
const forced = make("a", { class: "ckv-link", download: true, text: "Fidelity by token (CSV)" });
const followUps = make("a", { class: "ckv-link", download: true, text: "Follow-ups (CSV)" });
// Not marked as downloads: where the server refuses, its sentence is shown.
const report = make("a", { class: "ckv-link", text: "Report (HTML)" });
const bundle = make("a", { class: "ckv-link", text: "Bundle (zip)", title: "The whole run, to be imported elsewhere" });
const pairs = make("div", { class: "ckv-pair-links" });
const comparator = make("details", {}, make("summary", { text: "LLM Comparator (JSON)" }), pairs);
const again = make("a", { class: "ckv-link ckv-for-users", text: "Run again with changes" });
const sweep = make("a", { class: "ckv-link ckv-for-users", text: "Sweep this prompt" });
const files = make("div", { class: "ckv-run-links" },
  make("span", { text: "Files:" }), report, bundle, json, table, layers, heads, budgets, forced, followUps, comparator);
const bar = make("nav", { "aria-label": "This run", hidden: true },
  make("div", { class: "ckv-run-links" }, make("span", {}, "Link: ", short), copy, again, sweep), files);
root.append(bar);

copy.addEventListener("click", async () => {
  copy.textContent = (await copyText(short.href)) ? "Copied" : "Not copied";
  setTimeout(() => { copy.textContent = "Copy link"; }, 1500);
});

onValue((value) => {
  const slug = str(value?.slug);
  bar.hidden = slug === "";
  if (slug === "") return;
  const key = encodeURIComponent(slug);
  short.href = `/r/${key}`;
  setText(short, `/r/${slug}`);
  json.href = `/data/${key}/result.json`;
  table.href = `/data/${key}/table.csv`;
  layers.href = `/data/${key}/layers.csv`;
  heads.href = `/data/${key}/heads.csv`;
  budgets.href = `/data/${key}/budgets.csv`;
  forced.href = `/data/${key}/forced.csv`;
  followUps.href = `/data/${key}/follow_ups.csv`;
  again.href = `/?from=${key}`;
  again.hidden = value.kind === "sweep";
  setText(sweep, value.kind === "sweep" ? "Sweep again with changes" : "Sweep this prompt");
  sweep.href = `/sweep?from=${key}`;
  report.href = `/data/${key}/report.html`;
  bundle.href = `/data/${key}/bundle.zip`;
  report.hidden = bundle.hidden = !value.report;
  comparator.hidden = list(value.pairs).length === 0;
  pairs.replaceChildren(...list(value.pairs).map(({ a, b, text }) =>
    make("a", { class: "ckv-link", href: `/data/${key}/llm_comparator.json?a=${Number(a)}&b=${Number(b)}`, text: str(text) })));
  for (const file of [json, table, layers, heads, budgets]) file.hidden = !value.files;
  forced.hidden = !value.forced;
  followUps.hidden = !value.follow_ups;
  files.hidden = !value.files && !value.report;
});
