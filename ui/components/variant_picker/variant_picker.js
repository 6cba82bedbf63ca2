// Variants to choose from, by class: a search, a box for each, and what is chosen as chips.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";

const OTHERS = "Of the run";

export default function mount(host) {
  const { root, props, trigger } = host;
  const { offer } = props;
  const name = make("span.ckv-field-name", { id: `picker-${Math.random().toString(36).slice(2)}`, text: str(offer.label) });
  const chips = make("ul.ckv-row.ckv-chips.ckv-picked");
  const search = make("input.ckv-input", {
    type: "search",
    placeholder: "Search methods",
    "aria-label": `Search ${str(offer.label).toLowerCase()}`,
    oninput: filter,
  });
  const found = make("p.ckv-hint", { role: "status" });
  const boxes = new Map(); // by SPEC
  const rows = []; // {row, words}
  const sections = list(offer.groups).map(section);
  const others = section({ name: OTHERS, note: "What is taken out stays here until you leave.", methods: [] });
  others.hidden = true;

  root.append(
    make("div.ckv-panel.ckv-picker", { role: "group", "aria-labelledby": name.id }, [
      name,
      make("div.info-text.ckv-hint", str(offer.info)),
      chips,
      make("div.ckv-row", [
        search,
        make("button.ckv-button", { text: `The usual ${list(offer.usual).length}`, onclick: () => choose(list(offer.usual)) }),
        make("button.ckv-button", { text: "None", onclick: () => choose([]) }),
      ]),
      found,
      make("div.ckv-picker-list", others, ...sections),
    ]),
  );

  function box(variant, text) {
    const input = make("input", { type: "checkbox", "aria-label": str(variant.label), onchange: () => choose(chosen()) });
    boxes.set(variant.spec, { input, variant });
    return make("label.ckv-row", input, marker(variant.look), make("span", str(text)));
  }

  function methodRow(method, group) {
    const row = make("div.ckv-picker-row", [
      box(method.plain, method.plain.label),
      ...list(method.families).map((family) =>
        make("div.ckv-row.ckv-small.ckv-family", [
          make("span.ckv-hint", { "aria-hidden": "true", text: `+ ${str(family.name)}` }),
          ...list(family.variants).map((variant) => box(variant, variant.short)),
        ]),
      ),
    ]);
    const labels = list(method.families)
      .flatMap((family) => list(family.variants))
      .map((variant) => variant.label);
    rows.push({ row, words: [method.plain.label, method.words, group.name, ...labels].join(" ").toLowerCase() });
    return row;
  }

  function section(group) {
    return make("fieldset", [
      make("legend", str(group.name)),
      make("p.ckv-hint", str(group.note)),
      ...list(group.methods).map((method) => methodRow(method, group)),
    ]);
  }

  /** A box for a variant of a run that is not in the list, with the marker of its method. */
  function addOther(spec) {
    const label = /[:,]name=([^,]*)/.exec(spec)?.[1] ?? spec;
    const look = boxes.get(spec.split(/[+:]/)[0])?.variant.look;
    others.append(methodRow({ plain: { spec, label, look }, words: spec, families: [] }, { name: OTHERS }));
    others.hidden = false;
  }

  /** Methods that hold every word typed; an empty section goes with its rows. */
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const each of rows) each.row.hidden = !words.every((word) => each.words.includes(word));
    for (const each of [others, ...sections]) each.hidden = !each.querySelector(".ckv-picker-row:not([hidden])");
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
    return make("li", [
      make("button.ckv-chip.ckv-name", { "aria-label": `Remove ${str(label)}`, onclick: () => remove(spec) }, [
        marker(look),
        str(label),
        make("span", { "aria-hidden": "true", text: " ×" }),
      ]),
    ]);
  }

  function show(specs) {
    for (const spec of specs.map(str)) if (!boxes.has(spec)) addOther(spec);
    for (const [spec, { input }] of boxes) input.checked = specs.includes(spec);
    const picked = chosen().map((spec) => chosenChip(boxes.get(spec).variant));
    chips.replaceChildren(...(picked.length ? picked : [make("li.ckv-hint", "Nothing is chosen.")]));
  }

  onValue(host, (value) => show(list(value)));
}
