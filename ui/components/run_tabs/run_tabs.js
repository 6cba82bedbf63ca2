// On a phone the parts of a result are tabs; on a wider screen they stand below one another.

import { make, onValue } from "../../../assets/scripts/dom.js";

const TABS = [
  ["answers", "Answers"],
  ["kept", "Kept tokens"],
  ["more", "More"],
];

export default function mount(host) {
  let chosen = "answers";
  const narrow = matchMedia("(max-width: 700px)");
  const buttons = TABS.map(([name, text]) => make("button", { role: "tab", text, onclick: () => show(name) }));
  const bar = make("div.ckv-tabs", { role: "tablist", "aria-label": "Parts of the result", onkeydown: onKey }, buttons);
  host.root.append(bar);

  // Gradio gives a component's classes to its block and to what is in it.
  const panels = (name) => [...document.querySelectorAll(`.ckv-tab-${name}:not([class*="ckv-tab-"] *)`)];

  function show(name) {
    chosen = name;
    TABS.forEach(([each], at) => {
      const isChosen = each === name;
      buttons[at].setAttribute("aria-selected", String(isChosen));
      buttons[at].tabIndex = isChosen ? 0 : -1;
      for (const panel of panels(each)) {
        panel.toggleAttribute("data-off", !isChosen);
        if (narrow.matches) panel.setAttribute("role", "tabpanel");
        else panel.removeAttribute("role");
        if (narrow.matches) panel.setAttribute("aria-label", TABS[at][1]);
        else panel.removeAttribute("aria-label");
      }
    });
  }

  function onKey(event) {
    const at = buttons.indexOf(document.activeElement);
    const goals = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: TABS.length - 1 };
    if (at < 0 || !(event.key in goals)) return;
    event.preventDefault();
    const goal = (goals[event.key] + TABS.length) % TABS.length;
    show(TABS[goal][0]);
    buttons[goal].focus();
  }

  narrow.addEventListener("change", () => !bar.hidden && show(chosen));
  onValue(host, (value) => {
    bar.hidden = value === null;
    if (value !== null) show(chosen);
    else for (const [name] of TABS) for (const panel of panels(name)) panel.removeAttribute("data-off");
  });
}
