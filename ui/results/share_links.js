// Links that open one run: make one, see which there are, revoke.

import {
  button,
  copyButton,
  list,
  make,
  onValue,
  quietButton,
  scroller,
  setText,
  showText,
  str,
  tableHead,
} from "../../assets/scripts/dom.js";

const when = (text) => (text ? str(text).slice(0, 16).replace("T", " ") : "never");

export default function mount(host) {
  const { root, trigger } = host;
  const plain = make("p", "This app has no logins, so links are plain: anyone who can reach the app opens this run with its link above.");
  const intro = make("p", "Only you see this run. A share link shows it, and nothing else, to anyone who has the link, without a login.");
  const choice = make("select.ckv-select", { id: "share-expiry" });
  const add = button("Make a link", () => trigger("issue", { expiry: choice.value }));
  const form = make("div.ckv-row", make("label", { for: "share-expiry", text: "Expires" }), choice, add);
  const address = make("code.ckv-share-address");
  const copy = copyButton("Copy link", () => address.textContent);
  const made = make("p", { role: "status", hidden: true }, make("span", "New link, shown only now: "), address, copy);
  const note = make("p.ckv-notice", { role: "status", hidden: true });
  const body = make("tbody");
  const head = tableHead("Made (UTC)", "Expires (UTC)", "State", make("span.ckv-offscreen", "Actions"));
  const table = scroller("Share links", make("table.ckv-table", head, body));
  root.append(plain, intro, form, made, note, table);

  function item(row) {
    const label = { "aria-label": `Revoke the link made ${when(row.created)}` };
    const revoke = row.state === "open" ? quietButton("Revoke", () => trigger("revoke", { id: row.id }), label) : null;
    return make("tr", ...[when(row.created), when(row.expires), str(row.state), revoke].map((cell) => make("td", cell)));
  }

  onValue(host, (value) => {
    const shared = value !== null && !value.plain;
    plain.hidden = !value?.plain;
    for (const part of [intro, form]) part.hidden = !shared;
    const rows = list(value?.rows);
    table.hidden = rows.length === 0;
    body.replaceChildren(...rows.map(item));
    if (shared && choice.options.length === 0) {
      choice.append(...list(value.expiries).map((text) => make("option", { value: text, text: text === "never" ? text : `in ${text}` })));
      choice.value = "7 days";
    }
    made.hidden = !value?.path;
    setText(address, value?.path ? location.origin + value.path : "");
    showText(note, value?.message);
  });
}
