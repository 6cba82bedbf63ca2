// The address of a run, and links that open it without a login: make one, see which there are, revoke.

import {
  button,
  copyButton,
  list,
  make,
  menu,
  onValue,
  quietButton,
  scroller,
  showText,
  str,
  tableHead,
} from "../../assets/scripts/dom.js";

const when = (text) => (text ? str(text).slice(0, 16).replace("T", " ") : "never");

export default function mount(host) {
  const { root, trigger } = host;
  // Of who came by a share link: the page was led here, and goes on under the address that opens it.
  const shared = location.hash.match(/^#link=([\w-]+)$/)?.[1];
  const address = make("input.ckv-input.ckv-share-address", { readonly: true, "aria-label": "Link", onfocus: () => address.select() });
  const line = make(
    "div.ckv-share-line",
    address,
    copyButton("Copy link", () => address.value),
  );
  const intro = make("p.ckv-hint");
  const choice = make("select.ckv-select", { id: "share-expiry" });
  const add = button("Make a link", () => trigger("issue", { expiry: choice.value }));
  const form = make("div.ckv-row", make("label.ckv-small", { for: "share-expiry", text: "Read-only, expires" }), choice, add);
  const note = make("p.ckv-notice", { role: "status", hidden: true });
  const body = make("tbody");
  const head = tableHead("Made (UTC)", "Expires (UTC)", "State", make("span.ckv-offscreen", "Actions"));
  const table = scroller("Share links", make("table.ckv-table.ckv-tight", head, body));
  const parts = [make("strong", "Share this result"), line, intro, form, note, table];
  const share = menu(make("summary.ckv-button", "Share"), make("div.ckv-pop.ckv-stack.ckv-share-pop", ...parts));
  root.append(share);

  function item(row) {
    const label = { "aria-label": `Revoke the link made ${when(row.created)}` };
    const revoke = row.state === "open" ? quietButton("Revoke", () => trigger("revoke", { id: row.id }), label) : null;
    return make("tr", ...[when(row.created), when(row.expires), str(row.state), revoke].map((cell) => make("td", cell)));
  }

  onValue(host, (value) => {
    const slug = str(value?.slug);
    share.hidden = slug === "";
    const path = shared ? `/s/${shared}` : `/r/${encodeURIComponent(slug)}`;
    if (slug && shared && location.hash === `#link=${shared}`) history.replaceState(history.state, "", path);
    address.value = location.origin + (value?.path || path);
    const mayShare = value?.expiries !== undefined;
    form.hidden = !mayShare;
    const words = mayShare ? "Only you see this run. A link shows this run alone, without a login." : value?.words;
    showText(intro, value?.path ? "New link, shown only now. Anyone who has it sees this run and nothing else." : words);
    const rows = list(value?.rows);
    table.hidden = rows.length === 0;
    body.replaceChildren(...rows.map(item));
    if (mayShare && choice.options.length === 0) {
      choice.append(...list(value.expiries).map((text) => make("option", { value: text, text: text === "never" ? text : `in ${text}` })));
      choice.value = "7 days";
    }
    showText(note, value?.message);
  });
}
