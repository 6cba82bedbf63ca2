// What came out of a run: one sentence, who by outcome, what perturbation did, what is not said.

const SIGNS = { kept: "✓", lost: "✕", cut: "…" };
const headline = make("p", { class: "ckv-verdict-headline" });
const regimes = regimesHead();
const groups = make("dl", { class: "ckv-verdict-groups" });
const findings = make("div", { class: "ckv-verdict-findings" });
const cautions = make("p", { class: "ckv-verdict-cautions ckv-subdued" });
const strip = make("section", { class: "ckv-panel ckv-verdict-strip", "aria-label": "What came out", hidden: true },
  make("div", { role: "status" }, headline), regimes, groups, findings, cautions);
root.append(strip);

function memberItem(member) {
  return make("li", {},
    make("span", { class: "ckv-name" }, member.look ? marker(member.look) : null, make("span", { text: str(member.name) })),
    regimeMark(member.regime),
    member.note ? make("span", { class: "ckv-subdued", text: str(member.note) }) : null);
}

function groupRow(group) {
  const state = SIGNS[group.state] ? group.state : "cut";
  return make("div", { class: "ckv-verdict-group", "data-state": state },
    make("dt", {},
      make("span", { class: "ckv-verdict-sign", "aria-hidden": "true", text: SIGNS[state] }),
      make("span", { text: ` ${str(group.label)}` })),
    make("dd", {}, make("ul", {}, ...list(group.variants).map(memberItem))));
}

let drawn = "";
onValue((value) => {
  const shape = JSON.stringify(value);
  strip.hidden = !value?.headline;
  if (strip.hidden || shape === drawn) return;
  drawn = shape;
  setText(headline, str(value.headline));
  setRegimes(regimes, value.regimes);
  groups.replaceChildren(...list(value.groups).map(groupRow));
  groups.hidden = list(value.groups).length === 0;
  findings.replaceChildren(...list(value.findings).map((text) => make("p", { text: str(text) })));
  findings.hidden = list(value.findings).length === 0;
  setText(cautions, list(value.cautions).map(str).join(" "));
  cautions.hidden = cautions.textContent === "";
});
