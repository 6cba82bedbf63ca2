// Saved runs: rows with their outcome, inline editing, and actions on chosen ones.

import { button, list, make, onValue, quietButton, scroller, setText, str, tableHead, tag, whole } from "../../../assets/scripts/dom.js";
import { runFiles } from "./run_files.js";
import { filterForm, KINDS } from "./run_filters.js";

function pageLinks(value) {
  const link = (page, text) => {
    const query = new URLSearchParams(location.search);
    query.set("page", page);
    return make("a.ckv-link", { href: `/runs?${query}`, text });
  };
  return [
    value.page > 1 ? link(value.page - 1, "Previous page") : null,
    make("span.ckv-subdued", `Page ${value.page} of ${value.pages}, ${whole(value.total)} ${value.total === 1 ? "run" : "runs"}`),
    value.page < value.pages ? link(value.page + 1, "Next page") : null,
  ].filter(Boolean);
}

export default function mount(host) {
  const { root, trigger } = host;
  const chosen = new Set();
  let dropped = [];
  let restored = false;
  const message = make("p.ckv-notice", { role: "status" });
  const undo = button("Undo", () => act("undo", dropped), { hidden: true });
  const empty = make("p.ckv-empty");
  const body = make("tbody");
  const all = make("input", { type: "checkbox", "aria-label": "Choose all runs of this page", onchange: chooseAll });
  const heads = ["Run", "Outcome", "State", "Model", "Variants", "Tokens", "Created (UTC)"];
  const table = scroller("Saved runs", [
    make("table.ckv-table.ckv-run-table", tableHead(all, ...heads, make("span.ckv-offscreen", "Actions")), body),
  ]);
  const pages = make("nav.ckv-row.ckv-pages", { "aria-label": "Pages of the list" });
  const filters = make("div");
  let most = Infinity;
  const files = runFiles(
    () => act("refresh", []),
    () => most,
  );
  const bulk = make("div.ckv-row.ckv-bulk", { role: "group", "aria-label": "Chosen runs", hidden: true });
  root.append(files.node, filters, make("div.ckv-row", message, undo), bulk, empty, table, pages);

  const act = (action, slugs, more = {}) => trigger("act", { action, slugs, query: location.search, ...more });

  function choose(box, isChosen) {
    box.checked = isChosen;
    if (isChosen) chosen.add(box.dataset.slug);
    else chosen.delete(box.dataset.slug);
  }

  function chooseAll() {
    for (const box of body.querySelectorAll("input[data-slug]")) choose(box, all.checked);
    drawBulk();
  }

  function drawBulk() {
    bulk.hidden = chosen.size === 0;
    const slugs = [...chosen];
    // Kept with the entry of the browser's history, so "Back" finds them chosen.
    if (restored) history.replaceState({ ...history.state, chosen: slugs }, "");
    const tag = make("input.ckv-input", { type: "text", maxlength: "40", "aria-label": "Tag for the chosen runs", placeholder: "tag" });
    const named = slugs.map(encodeURIComponent).join(",");
    const together = make("a.ckv-link", { text: "Compare runs", href: `/several?ids=${named}`, hidden: slugs.length < 2 });
    const study = make("a.ckv-link", {
      text: "Run on these samples",
      href: `/?runs=${named}`,
      title: "Their texts as the samples of one run",
    });
    bulk.replaceChildren(
      make("span", `${slugs.length} chosen`),
      tag,
      quietButton("Tag", () => act("tag", slugs, { tag: tag.value })),
      together,
      study,
      quietButton("Export chosen", () => files.take([...chosen]), { title: "One bundle (zip) with prompts, notes and tags" }),
      quietButton("Delete chosen", () => act("delete", slugs)),
    );
  }

  function editor(row, line) {
    const field = (label, node) => make("label.ckv-field", make("span", { text: label }), node);
    const title = make("input.ckv-input", { type: "text", maxlength: "200", value: str(row.title) });
    const tags = make("input.ckv-input", { type: "text", value: list(row.tags).join(" ") });
    const note = make("textarea.ckv-input", { rows: "3", maxlength: "10000", value: str(row.note) });
    const close = () => {
      form.remove();
      line.querySelector("[data-edit]").focus();
    };
    const save = (event) => {
      event.preventDefault();
      act("edit", [row.slug], { title: title.value, note: note.value, tags: tags.value });
    };
    const form = make("tr.ckv-editor", { onkeydown: (event) => event.key === "Escape" && close() }, [
      make("td", { colspan: String(heads.length + 2) }, [
        make("form.ckv-stack", { onsubmit: save }, [
          field("Title", title),
          field("Tags, separated by spaces", tags),
          field("Note", note),
          make("span.ckv-row", make("button.ckv-button", { type: "submit", text: "Save" }), quietButton("Cancel", close)),
        ]),
      ]),
    ]);
    line.after(form);
    title.focus();
  }

  function item(row) {
    const name = str(row.title) || row.slug;
    const box = make("input", {
      type: "checkbox",
      "data-slug": row.slug,
      "aria-label": `Choose ${name}`,
      checked: chosen.has(row.slug),
      onchange: () => {
        choose(box, box.checked);
        drawBulk();
      },
    });
    const actions = make("td.ckv-row-actions", [
      quietButton(row.pinned ? "Unpin" : "Pin", () => act("pin", [row.slug], { pinned: !row.pinned }), {
        "aria-label": `${row.pinned ? "Unpin" : "Pin"} ${name}`,
      }),
      quietButton(
        "Edit",
        () => {
          if (!line.nextSibling?.classList.contains("ckv-editor")) editor(row, line);
        },
        { "aria-label": `Edit ${name}`, "data-edit": true },
      ),
      quietButton("Delete", () => act("delete", [row.slug]), { "aria-label": `Delete ${name}` }),
    ]);
    const line = make("tr", [
      make("td", box),
      make("th", { scope: "row" }, [
        row.pinned ? tag("Pinned") : null,
        row.kind === "compare" ? null : tag(KINDS[row.kind]),
        make("a.ckv-link", { href: `/run?id=${encodeURIComponent(row.slug)}`, text: name }),
        make("span.ckv-hint.ckv-request", str(row.request)),
        make("div.ckv-row.ckv-chips", ...list(row.tags).map((tag) => tag(`#${tag}`))),
        row.note ? make("span.ckv-hint.ckv-note", str(row.note)) : null,
      ]),
      make("td", { class: row.outcome ? "ckv-outcome" : "ckv-none", text: str(row.outcome) || "–" }),
      make("td", tag(row.state, { done: "good", failed: "bad" }[row.state])),
      make("td", str(row.model)),
      make("td.ckv-num", { "data-unit": "variants", text: str(row.variants), title: list(row.specs).join("\n") }),
      make("td", {
        class: `ckv-num ${row.tokens === null ? "ckv-none" : ""}`,
        "data-unit": "tokens",
        text: row.tokens === null ? "–" : whole(row.tokens),
      }),
      make("td.ckv-num", { text: str(row.created).slice(0, 16).replace("T", " "), title: new Date(row.created).toLocaleString() }),
      actions,
    ]);
    return line;
  }

  onValue(host, (value) => {
    const rows = list(value?.rows);
    if (value !== null && !restored) {
      restored = true;
      for (const slug of list(history.state?.chosen)) chosen.add(str(slug));
    }
    const there = new Set(rows.map((row) => row.slug));
    for (const slug of chosen) if (!there.has(slug)) chosen.delete(slug);
    dropped = list(value?.undo);
    most = Number(value?.import_mib) || Infinity;
    all.checked = false;
    setText(message, str(value?.message));
    message.dataset.tone = str(value?.tone);
    undo.hidden = dropped.length === 0;
    // A refused edit keeps what was typed.
    const typing = value?.tone === "error" && body.querySelector(".ckv-editor");
    if (!typing) body.replaceChildren(...rows.map(item));
    const filtered = Object.keys(value?.query ?? {}).length > 0;
    empty.replaceChildren(
      ...(filtered
        ? ["No run passes the search and the filters."]
        : ["No runs yet. Start one on the ", make("a.ckv-link", { href: "/", text: "Compare page" }), "."]),
    );
    empty.hidden = value === null || rows.length > 0;
    table.hidden = rows.length === 0;
    pages.replaceChildren(...(value && rows.length ? pageLinks(value) : []));
    filters.replaceChildren(...(value && (filtered || rows.length) ? [filterForm(value.query ?? {}, value.choices ?? {})] : []));
    drawBulk();
    if (!undo.hidden) undo.focus();
  });
}
