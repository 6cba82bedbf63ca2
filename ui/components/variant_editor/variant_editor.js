// A variant composed of parts: a list for each part, a field for each parameter, and its SPEC.

import { list, make, onValue, setText, str } from "../../../assets/scripts/dom.js";

const TYPING_MS = 250;
let count = 0;

export default function mount(host) {
  const { root, trigger } = host;
  const fields = new Map(); // by the key of a part
  const inputs = new Map(); // by the name of a parameter
  const parts = make("div.ckv-editor-grid");
  const parameters = make("div.ckv-editor-grid");
  const name = make("input.ckv-input", { type: "text", maxlength: "40", oninput: typed, onkeydown: submitted });
  const spec = make("code.ckv-editor-spec");
  const told = make("p.ckv-editor-told", { role: "status" });
  const add = make("button.ckv-button", { text: "Add to the variants", onclick: send });
  let shown = "";
  let waiting = 0;
  let turn = 0; // an answer to an earlier one is passed over

  root.append(
    make("div.ckv-editor", [
      parts,
      make("p.ckv-field-name", "Parameters"),
      make("p.ckv-hint", "An empty field means the default shown in grey; budget and alpha then come from the form."),
      parameters,
      make("div.ckv-editor-end", [labelled("Name", "What it is called everywhere; letters, digits, spaces and . ( ) % / -.", name), add]),
      make("p.ckv-editor-line", [make("span.ckv-hint", "SPEC: "), spec]),
      told,
    ]),
  );

  const asked = () => ({
    parts: Object.fromEntries([...fields].map(([key, { select }]) => [key, select.value])),
    values: Object.fromEntries([...inputs].map(([key, input]) => [key, input.value.trim()]).filter(([, text]) => text)),
    name: name.value.trim(),
    turn: ++turn,
  });

  function changed() {
    clearTimeout(waiting);
    trigger("compose", asked());
  }

  function typed() {
    clearTimeout(waiting);
    waiting = setTimeout(changed, TYPING_MS);
  }

  function send() {
    clearTimeout(waiting);
    trigger("include", asked());
  }

  function submitted(event) {
    if (event.key === "Enter") send();
  }

  function labelled(text, help, control, ...more) {
    const hint = make("span.ckv-hint", { id: `editor-${++count}`, text: str(help) });
    control.setAttribute("aria-describedby", hint.id);
    return make("div", make("label", make("span.ckv-field-name", text), control), hint, ...more);
  }

  const option = ({ word, label }) => make("option", { value: str(word), text: str(label) });

  function partField(field) {
    const select = make("select.ckv-select", { onchange: changed }, ...list(field.options).map(option));
    select.value = str(field.chosen);
    const meaning = make("span.ckv-hint.ckv-editor-meaning");
    fields.set(field.key, { select, meaning });
    return labelled(str(field.label), field.help, select, meaning);
  }

  function parameterField(parameter) {
    const words = list(parameter.choices);
    const input = words.length
      ? make("select.ckv-select", { onchange: changed }, ...["", ...words].map((word) => option({ word, label: word })))
      : make("input.ckv-input", { type: "text", oninput: typed, onkeydown: submitted });
    input.value = inputs.get(parameter.name)?.value ?? "";
    return [parameter.name, input, labelled(str(parameter.name), [parameter.help, parameter.range].filter(Boolean).join(" "), input)];
  }

  /** Fields of the same parameters stay, so that the keyboard stays where it is. */
  function showParameters(wanted) {
    const names = JSON.stringify(wanted.map((each) => [each.name, each.range]));
    if (names !== shown) {
      const made = wanted.map(parameterField);
      inputs.clear();
      for (const [key, input] of made) inputs.set(key, input);
      parameters.replaceChildren(...made.map(([, , field]) => field));
      shown = names;
    }
    for (const { name: key, default: text } of wanted) {
      const input = inputs.get(key);
      if (input.tagName === "SELECT") setText(input.options[0], `default (${str(text)})`);
      else input.placeholder = str(text);
    }
  }

  onValue(host, (value) => {
    if (turn && value?.turn !== turn) return;
    if (!fields.size) parts.append(...list(value?.parts).map(partField));
    for (const field of list(value?.parts)) {
      const { select, meaning } = fields.get(field.key);
      setText(select.options[0], str(list(field.options)[0]?.label));
      setText(meaning, str(list(field.options).find((each) => each.word === select.value)?.told));
    }
    showParameters(list(value?.parameters));
    setText(spec, str(value?.spec));
    setText(told, str(value?.told));
    told.className = `ckv-editor-told ckv-${str(value?.tone)}`;
    add.disabled = Boolean(value?.tone === "error");
  });
}
