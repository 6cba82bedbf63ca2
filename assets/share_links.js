// Links that open one run: make one, see which there are, revoke.

const plain = make("p", { text: "This app has no logins, so links are plain: whoever can reach the app opens this run with its link above." });
const intro = make("p", { text: "Only you see this run. A share link shows it, and nothing else, to whoever has the link, without a login." });
const choice = make("select", { class: "ckv-select", id: "share-expiry" });
const add = make("button", { type: "button", class: "ckv-button", text: "Make a link" });
const form = make("div", { class: "ckv-share-form" },
  make("label", { for: "share-expiry", text: "Expires" }), choice, add);
const address = make("code", { class: "ckv-share-address" });
const copy = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Copy link" });
const made = make("p", { role: "status", hidden: true },
  make("span", { text: "New link, shown only now: " }), address, copy);
const told = make("p", { class: "ckv-notice", role: "status", hidden: true });
const body = make("tbody");
const table = make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": "Share links" },
  make("table", { class: "ckv-table" },
    make("thead", {}, make("tr", {},
      ...["Made (UTC)", "Expires (UTC)", "State"].map((text) => make("th", { scope: "col", text })),
      make("th", { scope: "col" }, make("span", { class: "ckv-offscreen", text: "Actions" })))),
    body));
root.append(plain, intro, form, made, told, table);

const when = (text) => (text ? str(text).slice(0, 16).replace("T", " ") : "never");

add.addEventListener("click", () => trigger("issue", { expiry: choice.value }));
copy.addEventListener("click", async () => {
  copy.textContent = (await copyText(address.textContent)) ? "Copied" : "Not copied";
  setTimeout(() => { copy.textContent = "Copy link"; }, 1500);
});

function item(row) {
  const revoke = row.state === "open"
    ? make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Revoke", "aria-label": `Revoke the link made ${when(row.created)}` })
    : null;
  revoke?.addEventListener("click", () => trigger("revoke", { id: row.id }));
  return make("tr", {},
    make("td", { text: when(row.created) }), make("td", { text: when(row.expires) }),
    make("td", { text: str(row.state) }), make("td", {}, revoke));
}

onValue((value) => {
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
  setText(told, str(value?.told));
  told.hidden = !value?.told;
});
