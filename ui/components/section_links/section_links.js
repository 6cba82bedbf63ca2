// The sections of the results around this component.

import { onValue } from "../../../assets/scripts/dom.js";
import { sectionLinks } from "./sections.js";

export default function mount(host) {
  const { root, element } = host;
  const results = element.closest(".ckv-results");
  root.append(sectionLinks(() => [...results.querySelectorAll(".section h3, .ckv-section-name")]));
  onValue(host, () => {});
}
