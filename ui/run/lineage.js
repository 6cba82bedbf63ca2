// The runs before and after this one.

import { list, make, onValue, str } from "../../assets/scripts/dom.js";

const link = (href, text) => make("a.ckv-link", { href, text });
const open = (run) => link(`/run?id=${encodeURIComponent(run.slug)}`, str(run.title) || run.slug);
const report = (first, second) => link(`/several?ids=${encodeURIComponent(first)},${encodeURIComponent(second)}`, "what differs");

export default function mount(host) {
  const { root } = host;
  const relatives = make("ul.ckv-compared");
  const bar = make("nav", { "aria-label": "Lineage of this run", hidden: true }, relatives);
  // A guest who only has a share link cannot follow links that ask for a login. Gradio confines our files
  // of styles to its container, in which nothing above holds both the header and this.
  const guestStyle = make("style");
  root.append(bar, guestStyle);
  onValue(host, (value) => {
    const isGuest = value?.guest === true;
    guestStyle.textContent = isGuest ? ".ckv-header nav, .ckv-for-users { display: none !important; }" : "";
    bar.hidden = !value || isGuest || !(value.parent || list(value.children).length);
    if (bar.hidden) return;
    const { slug, parent } = value;
    relatives.replaceChildren(
      ...[
        !parent
          ? null
          : parent.title === null || parent.title === undefined
            ? make("li", `This is a ${parent.kind} of run ${parent.slug}, which is gone.`)
            : make("li", `This is a ${parent.kind} of `, open(parent), ": ", report(parent.slug, slug)),
        ...list(value.children).map((child) =>
          make("li", `A ${child.kind} of this, ${child.state}: `, open(child), ": ", report(slug, child.slug)),
        ),
      ].filter(Boolean),
    );
  });
}
