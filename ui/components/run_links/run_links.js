// Where a run can be found and taken away: short link, files in one menu, form.

import { copyButton, make, onValue, setText, str } from "../../../assets/scripts/dom.js";

const link = (text, more = {}) => make("a.ckv-link", { text, ...more });
const file = (text, path, needs, hint = "") => ({ text, path, needs, hint });
/** What the server may refuse is no download: its sentence is shown.
 * @type {[string, ReturnType<typeof file>[]][]} */
const FILES = [
  [
    "The whole run",
    [
      file("Report (HTML)", "report.html", "report", "opens offline, in any browser"),
      file("Report (HTML)", "report.html", "samples", "opens offline, in any browser"),
      file("All results (JSON)", "study.json", "samples"),
      file("All results and texts (JSON)", "study.json?data", "samples", "to be imported elsewhere"),
      file("Request (YAML)", "study.yaml", "samples", "runs again with ckv run"),
      file("Inspect log (JSON)", "inspect.json", "samples"),
      file("Bundle (zip)", "bundle.zip", "report", "to be imported elsewhere, with the prompt and notes"),
      file("Result (JSON)", "result.json", "files", "what the command line writes"),
      file("kvpress code (Python)", "kvpress.py", "report", "the variants as presses, and where they differ"),
    ],
  ],
  [
    "Tables (CSV)",
    [
      file("Table (CSV)", "table.csv", "files", "a row per variant"),
      file("Layers (CSV)", "layers.csv", "files"),
      file("Heads (CSV)", "heads.csv", "files"),
      file("Budgets (CSV)", "budgets.csv", "files"),
      file("Fidelity by token (CSV)", "forced.csv", "forced"),
      file("Follow-ups (CSV)", "follow_ups.csv", "follow_ups"),
      file("Scores (CSV)", "scores.csv", "samples", "a row per method and budget"),
      file("Results (CSV)", "results.csv", "samples", "a row per sample, method and budget"),
    ],
  ],
];

function group(name, links) {
  if (links.length === 0) return null;
  const items = links.map(([node, hint]) => make("li", node, hint ? make("span.ckv-hint", { text: hint }) : null));
  return make("section", { "aria-label": name }, make("strong", { text: name }), make("ul", ...items));
}

function fileGroups(value, base) {
  return FILES.map(([name, files]) =>
    group(
      name,
      files
        .filter(({ needs }) => value[needs])
        .map(({ text, path, needs, hint }) => [
          link(text, { href: `${base}/${path}`, download: needs !== "report" && path !== "report.html" }),
          hint,
        ]),
    ),
  ).filter(Boolean);
}

export default function mount(host) {
  const { root } = host;
  // Of who came by a share link: the page was led here, and goes on under the address that opens it.
  const shared = location.hash.match(/^#link=([\w-]+)$/)?.[1];
  const short = link("");
  const copy = copyButton("Copy link", () => short.href);
  const share = make("button.ckv-button.ckv-quiet.ckv-for-users.ckv-share-run", "Share");
  // Who may not share the run has no such section; Gradio confines our files of styles to its container.
  const unshared = make("style", { text: "body:not(:has(#share)) .ckv-share-run { display: none; }" });
  const again = link("Run again with changes", { class: "ckv-link ckv-for-users" });
  const groups = make("div.ckv-menu-groups");
  const menu = make("details.ckv-menu", make("summary.ckv-button", "Files"), groups);
  const bar = make("nav", { "aria-label": "This run", hidden: true }, [
    make("div.ckv-run-links", make("span", "Link: ", short), copy, share, menu, again),
  ]);
  root.append(bar, unshared);

  share.addEventListener("click", () => {
    /** @type {HTMLElement} */
    const bar = document.querySelector("#share > button");
    if (!bar.classList.contains("open")) bar.click();
    bar.scrollIntoView({ block: "center" });
    bar.focus({ preventScroll: true });
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.firstChild.focus();
  });
  menu.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !menu.contains(relatedTarget)) menu.open = false;
  });
  document.addEventListener("pointerdown", ({ target }) => {
    if (!menu.contains(target)) menu.open = false;
  });

  let drawn = "";
  onValue(host, (value) => {
    const slug = str(value?.slug);
    bar.hidden = slug === "";
    const shown = JSON.stringify(value);
    if (slug === "" || shown === drawn) return;
    drawn = shown;
    const key = encodeURIComponent(slug);
    const path = shared ? `/s/${shared}` : `/r/${key}`;
    if (shared && location.hash === `#link=${shared}`) history.replaceState(history.state, "", path);
    short.href = path;
    setText(short, path);
    again.href = `/?from=${key}`;
    const found = fileGroups(value, value.samples ? `/studies/${key}` : `/data/${key}`);
    again.hidden = Boolean(value.samples);
    groups.replaceChildren(...found);
    menu.hidden = found.length === 0;
  });
}
