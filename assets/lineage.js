// Run again the same, and the runs before and after this one.

const line = make("p", { class: "ckv-notice", role: "status" });
const again = make("button", { type: "button", class: "ckv-button", text: "Reproduce",
  title: "Run the same request again, to see whether the tokens and the kept sets are equal" });
const relatives = make("ul", { class: "ckv-compared" });
const bar = make("nav", { "aria-label": "Lineage of this run", hidden: true }, again, line, relatives);
// Whoever only has a share link cannot follow links that ask for a login. Gradio confines our files
// of styles to its container, in which nothing above holds both the header and this.
const guestStyle = make("style");
root.append(bar, guestStyle);
again.addEventListener("click", () => { again.disabled = true; trigger("reproduce", {}); });

const link = (href, text) => make("a", { class: "ckv-link", href, text });
const open = (run) => link(`/run?id=${encodeURIComponent(run.slug)}`, str(run.title) || run.slug);
const report = (first, second) => link(`/compare-runs?ids=${encodeURIComponent(first)},${encodeURIComponent(second)}`, "what differs");

onValue((value) => {
  const isGuest = value?.guest === true;
  guestStyle.textContent = isGuest ? ".ckv-header nav, .ckv-for-users { display: none !important; }" : "";
  bar.hidden = !value || isGuest;
  if (bar.hidden) return;
  again.disabled = false;
  setText(line, str(value.told));
  if (value.started) { location.assign(`/run?id=${encodeURIComponent(value.started)}`); return; }
  if (value.told) return;
  const { slug, parent } = value;
  relatives.replaceChildren(...[
    !parent ? null : parent.title === null || parent.title === undefined
      ? make("li", { text: `This is a ${parent.kind} of run ${parent.slug}, which is gone.` })
      : make("li", {}, `This is a ${parent.kind} of `, open(parent), ": ", report(parent.slug, slug)),
    ...list(value.children).map((child) => make("li", {}, `A ${child.kind} of this, ${child.state}: `, open(child), ": ", report(slug, child.slug))),
  ].filter(Boolean));
});
