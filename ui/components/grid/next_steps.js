// What to do next with a result: links, and a button that starts the run at several budgets.

import { button, list, make, onChange, setText, str } from "../../../assets/scripts/dom.js";

export default function mount(host) {
  const { root, trigger } = host;
  const find = button("Find the smallest budget", () => {
    find.disabled = true;
    setText(status, "Starting …");
    trigger("find", {});
  });
  const links = make("span.ckv-row");
  const status = make("span.ckv-hint", { role: "status" });
  const steps = make("p.ckv-row.ckv-next-steps", { hidden: true }, make("span.ckv-hint", "Next:"), find, links, status);
  root.append(steps);

  onChange(host, (value) => {
    find.disabled = false;
    if (value?.started) {
      setText(status, "");
      location.assign(`/run?id=${encodeURIComponent(value.started)}`);
      return;
    }
    steps.hidden = !value;
    if (!value) return;
    find.hidden = !value.find;
    find.title = str(value.find);
    setText(status, str(value.refused));
    status.dataset.tone = value.refused ? "error" : "";
    links.replaceChildren(
      ...list(value.links).map(({ text, href, title }) => make("a.ckv-button", { href: str(href), text: str(text), title: str(title) })),
    );
  });
}
