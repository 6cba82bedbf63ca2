// Variants to choose from, by class: a search, a box for each, and what is chosen as chips.

const { offer } = props;
const name = make("span", { class: "ckv-field-name", id: `picker-${Math.random().toString(36).slice(2)}`, text: str(offer.label) });
const chips = make("ul", { class: "ckv-picked" });
const search = make("input", { type: "search", class: "ckv-search", placeholder: "Search name, class or idea", "aria-label": `Search ${str(offer.label).toLowerCase()}`, oninput: filter });
const found = make("p", { class: "ckv-hint", role: "status" });
const boxes = new Map(); // by SPEC
const rows = []; // {row, words}
const sections = list(offer.groups).map(section);

root.append(make("div", { class: "ckv-picker", role: "group", "aria-labelledby": name.id },
  name,
  make("div", { class: "info-text ckv-hint", text: str(offer.info) }),
  chips,
  make("div", { class: "ckv-picker-bar" }, search,
    make("button", { type: "button", class: "ckv-button", text: `The usual ${list(offer.usual).length}`, onclick: () => choose(list(offer.usual)) }),
    make("button", { type: "button", class: "ckv-button", text: "None", onclick: () => choose([]) })),
  found,
  make("div", { class: "ckv-picker-list" }, ...sections)));

function box(variant, text) {
  const input = make("input", { type: "checkbox", "aria-label": str(variant.label), onchange: () => choose(chosen()) });
  boxes.set(variant.spec, { input, variant });
  return make("label", {}, input, marker(variant.look), make("span", { text: str(text) }));
}

function methodRow(method, group) {
  const row = make("div", { class: "ckv-picker-row" },
    box(method.plain, method.plain.label),
    ...list(method.families).map((family) => make("div", { class: "ckv-family" },
      make("span", { class: "ckv-hint", "aria-hidden": "true", text: `+ ${str(family.name)}` }),
      ...list(family.variants).map((variant) => box(variant, variant.short)))));
  const labels = list(method.families).flatMap((family) => list(family.variants)).map((variant) => variant.label);
  rows.push({ row, words: [method.plain.label, method.words, group.name, ...labels].join(" ").toLowerCase() });
  return row;
}

function section(group) {
  return make("fieldset", {}, make("legend", { text: str(group.name) }),
    make("p", { class: "ckv-hint", text: str(group.note) }),
    ...list(group.methods).map((method) => methodRow(method, group)));
}

/** Methods that hold every word typed; an empty section goes with its rows. */
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const each of rows) each.row.hidden = !words.every((word) => each.words.includes(word));
  for (const each of sections) each.hidden = !each.querySelector(".ckv-picker-row:not([hidden])");
  const shown = rows.filter((each) => !each.row.hidden).length;
  setText(found, words.length ? `${shown} of ${rows.length} methods${shown ? "" : "; try fewer letters"}.` : "");
}

const chosen = () => [...boxes].filter(([, { input }]) => input.checked).map(([spec]) => spec);

function choose(specs) {
  props.value = specs;
  show(specs);
  trigger("input");
}

/** Take one out; the keyboard goes on at its neighbour. */
function remove(spec) {
  const at = chosen().indexOf(spec);
  choose(chosen().filter((each) => each !== spec));
  const left = chips.querySelectorAll("button");
  (left[Math.min(at, left.length - 1)] ?? search).focus();
}

function chosenChip({ spec, look, label }) {
  return make("li", {}, make("button", { type: "button", class: "ckv-chip", "aria-label": `Remove ${str(label)}`, onclick: () => remove(spec) },
    marker(look), str(label), make("span", { "aria-hidden": "true", text: " ×" })));
}

function show(specs) {
  for (const [spec, { input }] of boxes) input.checked = specs.includes(spec);
  const picked = chosen().map((spec) => chosenChip(boxes.get(spec).variant));
  chips.replaceChildren(...(picked.length ? picked : [make("li", { class: "ckv-hint", text: "Nothing is chosen." })]));
}

onValue((value) => show(list(value)));
