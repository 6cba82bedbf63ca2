// Saved runs: rows with their outcome, inline editing, and actions on chosen ones.

import { button, fetchOk, list, make, menu, onValue, quietButton, setText, str, tableHead, whole } from "../../../assets/scripts/dom.js";
import { marker, outcomeMark } from "../../../assets/scripts/marks.js";
import { runFiles } from "./run_files.js";
import { filterForm, KINDS } from "./run_filters.js";

const COLUMNS = 7;
const MOST_MARKS = 8;
const MOST_BESIDE = 4; // runs, as ui/several/page.py
const ignore = () => {}; // the counts stay where a decision does not come
let decided = Promise.resolve();
const dayOf = (row) =>
  new Date(str(row.created)).toLocaleDateString("en-GB", { timeZone: "UTC", day: "numeric", month: "long", year: "numeric" });
const timeOf = (row) => str(row.created).slice(11, 16);

/** The marks of the methods; their names are read out and shown on hover. */
function marks(row) {
  const methods = list(row.methods);
  const names = methods.map((each) => str(each.label)).join(", ");
  return make("span.ckv-row.ckv-run-marks", { title: names }, [
    make("span.ckv-offscreen", names),
    methods.slice(0, MOST_MARKS).map((each) => marker(each.look)),
    methods.length > MOST_MARKS ? make("span.ckv-hint", `+${methods.length - MOST_MARKS}`) : null,
  ]);
}

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

const outcomeOf = (line) => [outcomeMark(str(line.outcome), str(line.words)), make("span.ckv-hint", str(line.more))];

/** What came out. A decision on many samples takes a while, so it comes later, one after the other. */
function outcomeCell(row) {
  const cell = make("td.ckv-outcome", outcomeOf(row));
  if (row.kind === "samples" && row.state === "done") {
    decided = decided
      .then(async () => {
        if (!cell.isConnected) return;
        const line = await (await fetchOk(`/studies/${encodeURIComponent(row.slug)}/decision`)).json();
        cell.replaceChildren(...outcomeOf(line));
        cell.title = str(line.title);
      })
      .catch(ignore);
  }
  return cell;
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
  const heads = ["Time", "Question or data", "Methods", "Budget", "Outcome"];
  const table = make("table.ckv-table.ckv-run-table", { "aria-label": "Saved runs" }, [
    tableHead(all, ...heads, make("span.ckv-offscreen", "Actions")),
    body,
  ]);
  const pages = make("nav.ckv-row.ckv-pages", { "aria-label": "Pages of the list" });
  const filters = make("div");
  let most = Infinity;
  const files = runFiles(
    () => act("refresh", []),
    () => most,
  );
  const bulk = make("div.ckv-row.ckv-selected", { role: "group", "aria-label": "Chosen runs", hidden: true });
  root.append(make("div.ckv-row.ckv-run-head", filters, files.node), make("div.ckv-row", message, undo), empty, table, bulk, pages);

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
    const named = slugs.map(encodeURIComponent).join(",");
    const several = `/several?ids=${named}`;
    const link = (text, href, title, hidden = false) => make("a.ckv-button", { text, href, title, hidden });
    bulk.replaceChildren(
      make("span", { role: "status" }, `${slugs.length} ${slugs.length === 1 ? "run" : "runs"} selected`),
      quietButton("Clear", clear),
      quietButton("Export", () => files.take([...chosen]), { title: "One bundle (zip) with prompts and notes" }),
      quietButton("Delete", () => act("delete", slugs)),
      link("Run on these samples", `/?runs=${named}`, "Their texts as the samples of one run"),
      link("As one table", `${several}&view=table`, "Means over the prompts of the runs", slugs.length < 2),
      link(
        "Side by side",
        `${several}&view=beside`,
        "What differs between up to four runs",
        slugs.length < 2 || slugs.length > MOST_BESIDE,
      ),
    );
  }

  function clear() {
    all.checked = false;
    chooseAll();
    all.focus();
  }

  function editor(row, line) {
    const field = (label, node) => make("label.ckv-field", make("span", { text: label }), node);
    const title = make("input.ckv-input", { type: "text", maxlength: "200", value: str(row.title) });
    const note = make("textarea.ckv-input", { rows: "3", maxlength: "10000", value: str(row.note) });
    const close = () => {
      form.remove();
      line.querySelector("summary").focus();
    };
    const save = (event) => {
      event.preventDefault();
      act("edit", [row.slug], { title: title.value, note: note.value });
    };
    const form = make("tr.ckv-editor", { onkeydown: (event) => event.key === "Escape" && close() }, [
      make("td", { colspan: String(COLUMNS) }, [
        make("form.ckv-stack", { onsubmit: save }, [
          field("Title", title),
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
    const actions = menu(
      make("summary.ckv-button.ckv-quiet", { "aria-label": `Actions of ${name}` }, "⋯"),
      make("div.ckv-pop", [
        quietButton("Edit", () => {
          actions.open = false;
          if (!line.nextSibling?.classList.contains("ckv-editor")) editor(row, line);
        }),
        quietButton("Delete", () => act("delete", [row.slug])),
      ]),
    );
    const model = [
      str(row.model),
      row.tokens === null ? "" : `${whole(row.tokens)} tokens`,
      row.kind === "compare" ? "" : KINDS[row.kind].toLowerCase(),
    ];
    const line = make("tr", [
      make("td", box),
      make("td.ckv-num", { text: timeOf(row), title: `${str(row.created).slice(0, 16).replace("T", " ")} UTC` }),
      make("th", { scope: "row" }, [
        make("a", { href: `/run?id=${encodeURIComponent(row.slug)}`, text: name }),
        make("span.ckv-hint", model.filter(Boolean).join(" · ")),
        row.note ? make("span.ckv-hint.ckv-note", str(row.note)) : null,
      ]),
      make("td", { title: list(row.specs).join("\n") }, marks(row)),
      make("td.ckv-num", str(row.budget) || "–"),
      outcomeCell(row),
      make("td", actions),
    ]);
    return line;
  }

  /** Rows in the order given, below the day that they are of; by name there are no days. */
  function byDay(rows, sort) {
    if (!["", "newest", "oldest"].includes(sort)) return rows.map(item);
    return rows.flatMap((row, at) => {
      const day = dayOf(row);
      const before = at && dayOf(rows[at - 1]);
      const head = make("tr.ckv-day", make("th", { colspan: String(COLUMNS), scope: "colgroup", text: day }));
      return day === before ? [item(row)] : [head, item(row)];
    });
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
    if (!typing) body.replaceChildren(...byDay(rows, str(value?.query?.sort)));
    const filtered = Object.keys(value?.query ?? {}).length > 0;
    empty.replaceChildren(
      ...(filtered
        ? ["No run passes the search and the filters. ", make("a.ckv-link", { href: "/runs", text: "Clear them" }), "."]
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
