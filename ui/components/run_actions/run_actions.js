// What can be done with a run: stop it, take it away as files or as code, run it again with changes.

import { button, copyButton, fetchOk, list, make, menu, onChange, setText, str } from "../../../assets/scripts/dom.js";

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
  ],
  "Tables (CSV)": [
    ["Table (CSV)", "table.csv", "files", "a row per method"],
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
        const link = make("a.ckv-link", { text, href: `${base}/${path}`, download });
        return make("li.ckv-row", link, hint ? make("span.ckv-hint", hint) : null);
      });
    return items.length ? [make("section", { "aria-label": name }, make("strong", name), make("ul", ...items))] : [];
  });
}

/** The run as code, fetched when it is opened: one tab each. */
class CodeMenu {
  constructor() {
    this.tabs = make("div.ckv-seg", { role: "tablist", "aria-label": "Languages", onkeydown: (event) => this.onKey(event) });
    this.note = make("p.ckv-hint");
    this.code = make("pre.ckv-code", { tabindex: "0", role: "tabpanel", "aria-label": "Code" });
    this.copy = copyButton("Copy", () => this.code.textContent);
    const parts = [this.tabs, this.note, this.code, this.copy];
    this.node = menu(make("summary.ckv-button", "Copy as code"), make("div.ckv-pop.ckv-stack", ...parts));
    this.node.addEventListener("toggle", () => this.node.open && this.load());
    this.address = this.loaded = "";
  }

  async load() {
    if (this.loaded === this.address) return;
    const { address } = this;
    setText(this.note, "Fetching the code …");
    try {
      const found = await (await fetchOk(address)).json();
      this.loaded = address;
      this.items = list(found);
      const tab = (item, at) => make("button", { role: "tab", text: str(item.label), onclick: () => this.show(at) });
      this.tabs.replaceChildren(...this.items.map(tab));
      this.show(0);
    } catch (error) {
      setText(this.note, `The code could not be fetched: ${error.message}.`);
    }
  }

  show(at) {
    [...this.tabs.children].forEach((tab, place) => {
      tab.setAttribute("aria-selected", String(place === at));
      /** @type {HTMLElement} */ (tab).tabIndex = place === at ? 0 : -1;
    });
    setText(this.note, str(this.items[at]?.note));
    setText(this.code, str(this.items[at]?.text));
    this.copy.hidden = !this.items[at]?.text;
  }

  onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const tabs = [...this.tabs.children];
    const at = tabs.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    const goal = (at + step + tabs.length) % tabs.length;
    this.show(goal);
    /** @type {HTMLElement} */ (tabs[goal]).focus();
  }
}

export default function mount(host) {
  const { root, trigger } = host;
  const cancel = button("Cancel", () => trigger("cancel"), { title: "Stop the run; what it has so far stays" });
  const resume = button("Resume", () => trigger("resume"), { title: "Run what is left; failed samples are tried again" });
  const words = make("span", "Run again", make("span.ckv-wide", " with changes"));
  const again = make("a.ckv-button.ckv-for-users", { title: "Open the form with these settings" }, words);
  const code = new CodeMenu();
  const openCode = button("Copy as code", () => code.node.setAttribute("open", ""), { class: "ckv-narrow" });
  const groups = make("div.ckv-menu-groups");
  const files = menu(make("summary.ckv-button", "Export"), make("div.ckv-pop.ckv-stack", openCode, groups));
  const bar = make("div.ckv-row.ckv-acts", { role: "group", "aria-label": "This run", hidden: true }, [
    cancel,
    resume,
    files,
    code.node,
    again,
  ]);
  root.append(bar);

  onChange(host, (value) => {
    const slug = str(value?.slug);
    bar.hidden = slug === "";
    if (bar.hidden) return;
    const key = encodeURIComponent(slug);
    const base = value.samples ? `/studies/${key}` : `/data/${key}`;
    cancel.hidden = !value.cancel;
    resume.hidden = !value.resume;
    again.href = `/?from=${key}`;
    again.hidden = Boolean(value.samples || value.cancel);
    const found = fileGroups(value, base);
    groups.replaceChildren(...found);
    files.hidden = found.length === 0 || Boolean(value.cancel);
    code.address = `${base}/code`;
    code.node.hidden = !value.code || Boolean(value.cancel);
  });
}
