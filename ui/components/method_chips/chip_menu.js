// A SPEC in its parts, METHOD[+critical|+critical_auto][:key=value,...], and the menu of its chip: what its method does, CriticalKV on top, its own parameters, Duplicate, Remove.

import { list, make, quietButton, select, str } from "../../../assets/scripts/dom.js";

/** @typedef {{ method: string, selector: string, pairs: Map<string, string> }} Parts */

/** @returns {Parts | null} null for what has another form */
export function parseSpec(spec) {
  const [head, ...tail] = spec.trim().split(":");
  const [method, selector = "", more] = head.split("+").map((word) => word.trim());
  const pairs = tail
    .join(":")
    .split(",")
    .filter((pair) => pair.trim() !== "")
    .map((pair) => pair.split("="));
  if (more !== undefined || pairs.some((pair) => pair.length !== 2)) return null;
  return { method, selector, pairs: new Map(pairs.map(([key, value]) => [key.trim(), value.trim()])) };
}

/** @param {Parts} parts */
export function writeSpec({ method, selector, pairs }) {
  const tail = [...pairs].map(([key, value]) => `${key}=${value}`).join(",");
  return `${method}${selector && `+${selector}`}${tail && `:${tail}`}`;
}

/** The version of CriticalKV, of those that its method offers, that a SPEC is; undefined for none. */
export function versionOf(method, { selector, pairs }) {
  if (!selector) return undefined;
  const stage = pairs.get("stage2") ?? (pairs.get("preset") === "kvpress" ? "pooled" : "raw");
  return method.versions.find((each) => {
    const own = parseSpec(each.spec);
    return own?.selector === selector && (own.pairs.get("stage2") ?? stage) === stage;
  });
}

/** The same with another version of CriticalKV, or none: what does not belong to it is left out. */
function withVersion(method, { pairs }, version) {
  const own = version ? parseSpec(version.spec) : { selector: "", pairs: new Map() };
  const takes = new Set(["name", ...[...method.takes[own.selector], ...method.options].map(([key]) => key)]);
  const kept = [...pairs].filter(([key]) => takes.has(key));
  return { method: method.name, selector: own.selector, pairs: new Map([...own.pairs, ...kept]) };
}

const OF_RUN = { budget: "as set for all", alpha: "as set for all", name: "your own label" };

/**
 * The contents of a menu, drawn again whenever what it shows has changed.
 *
 * @param {any} method what the server offers of it
 * @param {any} parts of the chip's SPEC
 * @param {any} meanings of parameters, by name
 * @param {{ change: (parts: any) => void, duplicate: () => void, remove: () => void, ablate: () => void }} act
 */
export function chipMenu(method, parts, meanings, act) {
  const version = versionOf(method, parts);
  const takes = method.takes[parts.selector] ?? [];
  return [
    make("div.ckv-row.ckv-apart", make("b", str(method.label)), make("span.ckv-hint", str(method.group))),
    make("p.ckv-small", str(method.summary)),
    method.versions.length ? critical(method, parts, version, act) : null,
    parameters("Parameters", [["name", ""], ...takes], parts, meanings, act, true),
    parameters("Parts of other methods", method.options, parts, meanings, act, false),
    make("div.ckv-row.ckv-apart", [
      quietButton("Duplicate", act.duplicate, { title: "Copy this method, to change a parameter" }),
      method.versions.length
        ? quietButton("Add its ablation", act.ablate, { title: "Add variants of this method, each with one part switched off or changed" })
        : null,
      quietButton("Remove", act.remove),
    ]),
  ];
}

/** The switch, and the versions while it is on. */
function critical(method, parts, version, act) {
  const name = make("span.ckv-small", make("b", "CriticalKV"), " on top");
  const set = (each) => act.change(withVersion(method, parts, each));
  const toggle = make("button.ckv-switch", {
    role: "switch",
    "aria-checked": String(Boolean(parts.selector)),
    "aria-label": "CriticalKV on top",
    onclick: () => set(parts.selector ? undefined : method.versions[0]),
  });
  const choices = method.versions.map((each) =>
    make("button", { "aria-pressed": String(each === version), title: str(each.label), onclick: () => set(each) }, str(each.word)),
  );
  return make("div.ckv-stack", [
    make("div.ckv-row.ckv-apart", name, toggle),
    parts.selector ? make("div.ckv-seg", { role: "group", "aria-label": "Version of CriticalKV" }, choices) : null,
  ]);
}

/** A folded list of fields; its line says what is set. */
function parameters(title, rows, parts, meanings, act, isFirst) {
  if (!list(rows).length) return null;
  const preset = parts.pairs.get("preset") === "kvpress" ? 2 : 1;
  const shown = rows.filter(([name]) => parts.pairs.has(name)).map(([name]) => `${name} ${parts.pairs.get(name)}`);
  const own = rows.filter(([name]) => !(name in OF_RUN) && name !== "preset").map((row) => `${row[0]} ${row[preset]}`);
  const line = shown.length || !isFirst ? shown : own.slice(0, 2);
  const fields = rows.map((row) => field(row, preset, parts, meanings, act));
  const summary = make("summary", title, " ", make("span.ckv-hint", line.join(", ")));
  return make("details.ckv-more", { "data-part": title }, summary, make("div.ckv-fields", fields));
}

function field([name, ...defaults], preset, parts, meanings, act) {
  const { help = "", choices = [] } = meanings[name] ?? {};
  const now = parts.pairs.get(name) ?? "";
  const standard = OF_RUN[name] ?? str(defaults[preset - 1]);
  const more = { "data-key": name, title: str(help), "aria-label": name };
  const change = (text) => {
    const pairs = new Map(parts.pairs);
    const value = text.replace(/[,=]/g, " ").trim();
    if (value) pairs.set(name, value);
    else pairs.delete(name);
    if (name === "preset") setAlpha(pairs, value);
    act.change({ ...parts, pairs });
  };
  /** The preset has an alpha of its own, which is then seen in its field. */
  const setAlpha = (pairs, value) => {
    if (value === "kvpress" && parts.selector === "critical" && !pairs.has("alpha")) pairs.set("alpha", "0.5");
    else if (value !== "kvpress" && pairs.get("alpha") === "0.5") pairs.delete("alpha");
  };
  const options = [["", `default (${standard})`], ...list(choices).map((word) => [word, word])];
  const control = list(choices).length
    ? select(options, now, change, more)
    : make("input.ckv-input", { value: now, placeholder: standard, onchange: (event) => change(event.target.value), ...more });
  return make("div.ckv-field", [
    make("span.ckv-small", { "aria-hidden": "true", text: name }),
    control,
    help ? make("p.ckv-hint", str(help)) : null,
  ]);
}
