// What came out of a run: one sentence, variants by outcome, what perturbation did, and cautions.

import { list, make, onChange, regimeMark, regimesHead, setText, showText, specParts, str } from "../../../assets/scripts/dom.js";
import { marker } from "../../../assets/scripts/marks.js";

const SIGNS = { kept: ["✓", "good"], lost: ["✕", "bad"], cut: ["…", ""] };
function memberItem(member) {
  return make("li.ckv-row", [
    make("span.ckv-name", member.look ? marker(member.look) : null, make("span", specParts(member.name))),
    regimeMark(member.regime),
    member.note ? make("span.ckv-subdued", str(member.note)) : null,
  ]);
}

function groupRow(group) {
  const [sign, tone] = SIGNS[group.state];
  return make("div.ckv-verdict-group", { "data-state": group.state }, [
    make("dt", make("span", { class: `ckv-${tone}`, "aria-hidden": "true", text: sign }), make("span", ` ${str(group.label)}`)),
    make("dd", make("ul.ckv-row", ...list(group.variants).map(memberItem))),
  ]);
}

export default function mount(host) {
  const { root } = host;
  const headline = make("p.ckv-verdict-headline");
  const regimes = regimesHead();
  const groups = make("dl.ckv-verdict-groups");
  const findings = make("div");
  const cautions = make("p.ckv-hint");
  const strip = make("section.ckv-panel.ckv-stack.ckv-verdict-strip", { "aria-label": "What came out", hidden: true }, [
    make("div", { role: "status" }, headline),
    regimes,
    groups,
    findings,
    cautions,
  ]);
  root.append(strip);

  onChange(host, (value) => {
    strip.hidden = !value?.headline;
    document.body.classList.toggle("ckv-regimes-shown", !strip.hidden && Boolean(value.regimes));
    if (strip.hidden) return;
    setText(headline, str(value.headline));
    showText(regimes, value.regimes);
    groups.replaceChildren(...list(value.groups).map(groupRow));
    groups.hidden = list(value.groups).length === 0;
    findings.replaceChildren(...list(value.findings).map((text) => make("p", str(text))));
    findings.hidden = list(value.findings).length === 0;
    showText(cautions, list(value.cautions).map(str).join(" "));
  });
}
