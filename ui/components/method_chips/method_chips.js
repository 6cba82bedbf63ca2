// The chosen methods as chips: each opens a menu of its own, the last one adds a method.

import { list, make, menu, onValue, str } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";
import { addMethod } from "./add_method.js";
import { chipMenu, parseSpec, versionOf, writeSpec } from "./chip_menu.js";

export default function mount(host) {
  const { root, props, trigger } = host;
  const offer = JSON.parse(props.offer);
  const methods = new Map(list(offer.groups).flatMap((group) => group.methods.map((each) => [each.name, { ...each, group: group.name }])));
  /** @type {{ spec: string, node: any }[]} */
  let chips = [];
  let shown = "";
  const name = make("span.ckv-field-name", { id: `methods-${Math.random().toString(36).slice(2)}`, text: "Methods" });
  const row = make("div.ckv-row.ckv-chip-row", { role: "group", "aria-labelledby": name.id, onkeydown: move });
  const full = make(
    "span.ckv-chip.ckv-fixed",
    { title: "Nothing is evicted: what the others are compared with" },
    marker(offer.full),
    "Full cache",
  );
  const adder = addMethod(
    list(offer.groups),
    (method) => nextOf(method) === undefined,
    (method) => change([...specs(), nextOf(method)]),
  );
  const lead = make("span.ckv-hint", "each gets the same text and the same budget");
  root.append(make("div.ckv-method-chips", make("div.ckv-row", name, lead), row));

  /** The method alone, or where it is chosen the first version of CriticalKV that is not. */
  const nextOf = (method) => [method, ...method.versions].map(({ spec }) => spec).find((spec) => !specs().includes(spec));
  const specs = () => chips.map(({ spec }) => spec);
  const stops = () => [...chips.map(({ node }) => node), adder].map((node) => node.firstElementChild);

  function change(wanted) {
    draw(wanted);
    props.value = wanted;
    trigger("input");
  }

  /** One stop of the Tab key for all chips; arrow keys go from one to the next. */
  function setStop(stop) {
    for (const each of stops()) each.tabIndex = each === stop ? 0 : -1;
  }

  function move(event) {
    const all = stops();
    const at = all.indexOf(event.target);
    if (at < 0) return;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) all[Math.min(Math.max(to, 0), all.length - 1)].focus();
    else if (["Delete", "Backspace"].includes(event.key) && at < chips.length) remove(at);
    else return;
    event.preventDefault();
  }

  function remove(at) {
    change(specs().filter((_, each) => each !== at));
    stops()[Math.min(at, chips.length)].focus();
  }

  /** What a chip shows: marker and label of its method and version, then what else is set. */
  function face(spec) {
    const parts = parseSpec(spec);
    const method = parts && methods.get(parts.method);
    const version = method && versionOf(method, parts);
    if (!method || (parts.selector && !version)) return [make("span.ckv-name", spec)];
    const own = parts.pairs.get("name");
    const hidden = ["name", ...(version ? ["stage2"] : [])];
    const more = [...parts.pairs].filter(([key]) => !hidden.includes(key)).map((pair) => pair.join(" "));
    return [
      make("span.ckv-name", marker((version ?? method).look), own ?? str((version ?? method).label)),
      more.length ? make("span.ckv-hint", more.join(", ")) : null,
    ];
  }

  function chip(spec) {
    const summary = make("summary.ckv-chip", face(spec));
    const pop = make("div.ckv-pop", { role: "dialog", "aria-label": summary.textContent });
    const node = menu(summary, pop);
    const own = { spec, node };
    node.addEventListener("toggle", () => {
      if (!node.open) return;
      // Once: what is typed into an open menu must not be drawn again by the event of its opening.
      if (!pop.firstChild) fill(own, summary, pop);
      pop.querySelector("button, input, summary")?.focus();
    });
    return own;
  }

  /** Draw the menu again; what was unfolded and where the keyboard was stay. */
  function fill(own, summary, pop) {
    const at = () => chips.indexOf(own);
    const parts = parseSpec(own.spec);
    const method = parts && methods.get(parts.method);
    const focused = [...pop.querySelectorAll("*")].indexOf(document.activeElement);
    const key = /** @type {any} */ (document.activeElement)?.dataset?.key;
    const open = [...pop.querySelectorAll("details[open]")].map((each) => each.dataset.part);
    const act = {
      change(wanted) {
        own.spec = writeSpec(wanted);
        setFace(own, summary);
        fill(own, summary, pop);
        change(specs());
      },
      duplicate() {
        change(specs().flatMap((spec, each) => (each === at() ? [spec, spec] : [spec])));
        own.node.open = false;
        const copy = stops()[at() + 1];
        copy.focus(); // at once, so that the next key is for it
        copy.click();
      },
      remove: () => remove(at()),
      ablate: () => trigger("ablate", { spec: own.spec }),
    };
    if (method) pop.replaceChildren(...chipMenu(method, parts, offer.parameters, act).filter(Boolean));
    else pop.replaceChildren(...unknown(own, act));
    for (const each of pop.querySelectorAll("details")) each.open = open.includes(each.dataset.part);
    if (focused < 0) return;
    const again = key ? pop.querySelector(`[data-key="${key}"]`) : pop.querySelectorAll("*")[focused];
    again?.focus();
  }

  /** Of a SPEC that this version does not know: its text, to be mended or taken out. */
  function unknown(own, act) {
    const mend = (event) => change(specs().map((spec, at) => (at === chips.indexOf(own) ? event.target.value.trim() : spec)));
    return [
      make("p.ckv-small", "This version does not know this method."),
      make("input.ckv-input", { value: own.spec, "aria-label": "SPEC of the method", onchange: mend }),
      make("div.ckv-row.ckv-apart", make("span"), make("button.ckv-button.ckv-quiet", { text: "Remove", onclick: act.remove })),
    ];
  }

  function setFace(own, summary) {
    summary.replaceChildren(...face(own.spec).filter(Boolean));
  }

  /** Chips that stay keep their node, and so their open menu. */
  function draw(wanted) {
    const left = [...chips];
    const next = wanted.map((spec) => {
      const at = left.findIndex((each) => each.spec === spec);
      return at < 0 ? chip(spec) : left.splice(at, 1)[0];
    });
    const isSame = next.length === chips.length && next.every((each, at) => each === chips[at]);
    chips = next;
    if (!isSame || !row.firstChild) {
      for (const { node } of left) node.remove();
      row.replaceChildren(full, ...chips.map(({ node }) => node), adder);
    }
    const all = stops();
    setStop(all.find((each) => each.tabIndex === 0 && each.isConnected) ?? all[0]);
    const hasAlpha = chips.some(({ spec }) => parseSpec(spec)?.selector === "critical");
    document.getElementById("ask")?.toggleAttribute("data-alpha", hasAlpha);
    shown = wanted.join("\n");
  }

  row.addEventListener("focusin", ({ target }) => {
    if (stops().includes(target)) setStop(target);
  });
  // A sentence that names a SPEC is about its chip.
  new MutationObserver(() => {
    const wrong = document.getElementById("wrong-variants")?.textContent ?? "";
    for (const { spec, node } of chips) node.toggleAttribute("data-wrong", wrong.includes(`'${spec}'`));
  }).observe(root.closest(".block") ?? root, { childList: true, subtree: true });

  onValue(host, (value) => {
    const wanted = list(value).map(str);
    if (wanted.join("\n") !== shown || !row.firstChild) draw(wanted);
  });
}
