// Where a run can be found and taken away: short link, files in one menu, form.

import { copyButton, make, menu, onChange, quietButton, setText, str } from "../../../assets/scripts/dom.js";

const link = (text, more = {}) => make("a.ckv-link", { text, ...more });

/** Files by group: text, path, what of the value it needs, and a hint. What the server may refuse
 * (a report) is no download: its sentence is shown. */
const FILES = {
  "The whole run": [
    ["Report (HTML)", "report.html", "report", "opens offline, in any browser"],
    ["Report (HTML)", "report.html", "samples", "opens offline, in any browser"],
    ["All results (JSON)", "study.json", "samples"],
    ["All results and texts (JSON)", "study.json?data", "samples", "to be imported elsewhere"],
    ["Request (YAML)", "study.yaml", "samples", "runs again with ckv run"],
    ["Inspect log (JSON)", "inspect.json", "samples"],
    ["Bundle (zip)", "bundle.zip", "report", "to be imported elsewhere, with the prompt and notes"],
    ["Result (JSON)", "result.json", "files", "what the command line writes"],
    ["kvpress code (Python)", "kvpress.py", "report", "the variants as presses, and where they differ"],
  ],
  "Tables (CSV)": [
    ["Table (CSV)", "table.csv", "files", "a row per variant"],
    ["Values (CSV)", "analysis.csv", "files", "by layer, head and step"],
    ["Fidelity by token (CSV)", "forced.csv", "forced"],
    ["Follow-ups (CSV)", "follow_ups.csv", "follow_ups"],
    ["Scores (CSV)", "scores.csv", "samples", "a row per metric of a method and budget"],
    ["Results (CSV)", "results.csv", "samples", "a row per sample, method and budget"],
  ],
};

function fileGroups(value, base) {
  return Object.entries(FILES).flatMap(([name, files]) => {
    const items = files
      .filter(([, , needs]) => value[needs])
      .map(([text, path, needs, hint]) => {
        const download = needs !== "report" && path !== "report.html";
        return make("li.ckv-row", link(text, { href: `${base}/${path}`, download }), hint ? make("span.ckv-hint", hint) : null);
      });
    return items.length ? [make("section", { "aria-label": name }, make("strong", name), make("ul", ...items))] : [];
  });
}

export default function mount(host) {
  const { root } = host;
  // Of who came by a share link: the page was led here, and goes on under the address that opens it.
  const shared = location.hash.match(/^#link=([\w-]+)$/)?.[1];
  const short = link("");
  const copy = copyButton("Copy link", () => short.href);
  const share = quietButton("Share", openShare, { class: "ckv-quiet ckv-for-users ckv-share-run" });
  // Who may not share the run has no such section; Gradio confines our files of styles to its container.
  const unshared = make("style", { text: "body:not(:has(#share)) .ckv-share-run { display: none; }" });
  const again = link("Run again with changes", { class: "ckv-link ckv-for-users" });
  const groups = make("div.ckv-row.ckv-pop.ckv-files-of-run");
  const files = menu(make("summary.ckv-button", "Files"), groups);
  const bar = make("nav", { "aria-label": "This run", hidden: true }, [
    make("div.ckv-row.ckv-run-links", make("span", "Link: ", short), copy, share, files, again),
  ]);
  root.append(bar, unshared);

  function openShare() {
    /** @type {HTMLElement} */
    const fold = document.querySelector("#share > button");
    if (!fold.classList.contains("open")) fold.click();
    fold.scrollIntoView({ block: "center" });
    fold.focus({ preventScroll: true });
  }

  onChange(host, (value) => {
    const slug = str(value?.slug);
    bar.hidden = slug === "";
    if (bar.hidden) return;
    const key = encodeURIComponent(slug);
    const path = shared ? `/s/${shared}` : `/r/${key}`;
    if (shared && location.hash === `#link=${shared}`) history.replaceState(history.state, "", path);
    short.href = path;
    setText(short, path);
    again.href = `/?from=${key}`;
    const found = fileGroups(value, value.samples ? `/studies/${key}` : `/data/${key}`);
    again.hidden = Boolean(value.samples);
    groups.replaceChildren(...found);
    files.hidden = found.length === 0;
  });
}
