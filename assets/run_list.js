// Saved runs, newest first; deleting asks once more in place.

const empty = make("p", { class: "ckv-empty", text: "No runs yet. Start one on the Compare page." });
const told = make("p", { class: "ckv-notice", role: "status", hidden: true });
const body = make("tbody");
const table = make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": "Saved runs" },
  make("table", { class: "ckv-table ckv-run-table" },
    make("thead", {}, make("tr", {}, ...["Run", "State", "Model", "Variants", "Tokens", "Created"]
      .map((text) => make("th", { scope: "col", text })),
      make("th", { scope: "col" }, make("span", { class: "ckv-offscreen", text: "Actions" })))),
    body));
const pages = make("nav", { class: "ckv-pages", "aria-label": "Pages of the list" });
root.append(told, empty, table, pages);

function actions(row) {
  const ask = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Delete", "aria-label": `Delete ${row.title}` });
  const yes = make("button", { type: "button", class: "ckv-button ckv-danger", text: "Delete for good", hidden: true });
  const no = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Keep", hidden: true });
  const flip = (asking) => { ask.hidden = asking; yes.hidden = no.hidden = !asking; (asking ? no : ask).focus(); };
  ask.addEventListener("click", () => flip(true));
  no.addEventListener("click", () => flip(false));
  yes.addEventListener("click", () => {
    yes.disabled = true;
    trigger("remove", { slug: row.slug, page: Number(props.value?.page) || 1 });
  });
  return make("td", { class: "ckv-row-actions" }, ask, no, yes);
}

function item(row) {
  const when = new Date(row.created);
  const href = `/run?id=${encodeURIComponent(row.slug)}`;
  return make("tr", {},
    make("th", { scope: "row" }, make("a", { class: "ckv-link", href, text: str(row.title) || row.slug })),
    make("td", {}, make("span", { class: "ckv-state", "data-state": str(row.state), text: str(row.state) })),
    make("td", { text: str(row.model) }),
    make("td", { class: "ckv-num", text: str(row.variants), title: list(row.specs).join("\n") }),
    make("td", { class: "ckv-num", text: row.tokens === null ? "–" : whole(row.tokens) }),
    make("td", { class: "ckv-num", text: when.toLocaleString(), title: str(row.created) }),
    actions(row));
}

function pageLinks(value) {
  const link = (page, text) => make("a", { class: "ckv-link", href: `/runs?page=${page}`, text });
  return [
    value.page > 1 ? link(value.page - 1, "Newer") : null,
    make("span", { class: "ckv-subdued", text: `Page ${value.page} of ${value.pages}, ${whole(value.total)} ${value.total === 1 ? "run" : "runs"}` }),
    value.page < value.pages ? link(value.page + 1, "Older") : null,
  ].filter(Boolean);
}

onValue((value) => {
  const rows = list(value?.rows);
  setText(told, str(value?.told));
  told.hidden = !value?.told;
  empty.hidden = value === null || rows.length > 0;
  table.hidden = rows.length === 0;
  body.replaceChildren(...rows.map(item));
  pages.replaceChildren(...(value && rows.length ? pageLinks(value) : []));
});
