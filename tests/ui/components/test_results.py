"""Verdict, table of answers, figures, strips and actions in a real browser."""

from typing import Any

from playwright.sync_api import Locator, expect

from tests.ui.components.lab import LOOK, View, answer_row

STEPS = [
    {"label": "Read the text", "share": 0.6, "fraction": 1.0, "is_now": False},
    {"label": "Answer, token 3 of 64", "share": 0.4, "fraction": 0.25, "is_now": True},
]
HEADS = [
    {"key": key, "label": key.capitalize(), "unit": "", "help": f"What {key} is."}
    for key in ("name", "text", "outcome", "memory", "agreement")
]
VARIANT = {"key": "variant", "label": "Variant", "align": "left"}
COLUMNS = [
    {"key": "kept", "label": "Kept", "help": "Entries kept.", "unit": "entries", "align": "right"},
    {"key": "answer", "label": "Answer", "help": "", "unit": "", "align": "left"},
]


def summary(label: str = "SnapKV", kept: str = "11,520", **changes: Any) -> dict[str, Any]:
    cells = {
        "variant": {"text": label, "spec": "snapkv"},
        "kept": {"text": kept, "title": "asked 11,520", "tone": ""},
        "answer": {"text": "missing", "title": "", "tone": "warn"},
    }
    row = {"look": LOOK, "cells": cells}
    table = {"caption": "Figures", "rows": [row], "note": "One note.", "file": "summary.csv"}
    return table | {"columns": [VARIANT, *COLUMNS]} | changes


def show_answers(view: View, *rows: dict[str, Any]) -> Locator:
    """Their nodes, once all are there."""
    view.send(answers={"columns": HEADS, "rows": rows, "note": ""})
    found = view.page.locator("#answers tbody tr")
    found.nth(len(rows) - 1).wait_for()
    return found


def test_the_verdict_has_a_cause_and_a_caution_and_while_it_runs_how_far_it_is(open_view):
    view = open_view()
    words = {"headline": "1 of 6 answers.", "causes": ["Eviction did it."]}
    words |= {"findings": ["A finding."], "cautions": ["One text only.", "A second."]}
    running = {"state": "running", "sentence": "Answering: 4 of 6.", "left_s": 40, "steps": STEPS}
    page = view.send(verdict=running).page
    section = page.locator("#verdict section")
    expect(section.locator("[role=status]")).to_have_text(r"Answering: 4 of 6, about 40 s left.")
    expect(section.locator("[aria-current=step]")).to_have_text("Answer, token 3 of 64")
    bars = section.locator("li").evaluate_all("es => es.map(e => e.getBoundingClientRect().width)")
    assert bars[0] > 1.3 * bars[1]
    view.send(verdict={**words, "state": "done", "sentence": "", "left_s": None, "steps": []})
    expect(section.locator("[role=status]")).to_have_text("1 of 6 answers.")
    expect(section.locator(".ckv-verdict-lines")).to_have_text("Eviction did it. One text only.")
    expect(section.locator("ol")).to_be_hidden()
    expect(page.get_by_text("A second.")).to_be_hidden()
    page.get_by_text("More about this").click()
    expect(page.get_by_text("A second.")).to_be_visible()
    view.send(verdict={"state": "failed", "sentence": "The worker died.", "steps": []})
    expect(section.locator("[role=status]")).to_have_text("The worker died.")


# --- the summary ----------------------------------------------------------------------------


def downloaded(view: View) -> list[str]:
    with view.page.expect_download() as download:
        view.page.get_by_role("button", name="Download CSV").click()
    return download.value.path().read_text("utf-8").splitlines()


def test_summary_is_a_table_with_headers_and_help_by_keyboard(open_view):
    page = open_view().send(summary=summary()).page
    page.get_by_role("rowheader", name="SnapKV").wait_for()
    assert page.locator("#summary caption").count() == 1
    assert page.locator("#summary thead th[scope=col]").count() == 3
    assert "⚠ missing" in page.locator("#summary tbody").inner_text()
    tip = page.locator("[role=tooltip]")
    assert tip.is_hidden()
    page.locator("#summary .ckv-help").focus()
    assert tip.is_visible()
    assert tip.inner_text() == "Entries kept."
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_extra_columns_are_shown_on_demand_and_always_downloaded_without_formulas(open_view):
    columns = [VARIANT, COLUMNS[0], COLUMNS[1] | {"extra": True}]
    view = open_view().send(summary=summary('=HYPERLINK("x")', "-1.5", columns=columns))
    page = view.page
    more = page.get_by_role("button", name="1 more column", exact=True)
    more.wait_for()
    heads = page.locator("#summary thead th[scope=col]")
    assert (heads.count(), more.get_attribute("aria-expanded")) == (2, "false")
    head, row = downloaded(view)
    assert head == '"Variant","Kept (entries)","Answer"'
    assert row == '"\'=HYPERLINK(""x"")","-1.5","missing"'
    more.focus()
    page.keyboard.press("Enter")
    fewer = page.get_by_role("button", name="Fewer columns", exact=True)
    fewer.wait_for()
    assert (heads.count(), fewer.get_attribute("aria-expanded")) == (3, "true")
    assert fewer.evaluate("e => e === document.activeElement")
    table = page.locator("#summary table")
    assert fewer.get_attribute("aria-controls") == table.get_attribute("id")


# --- the table of answers -------------------------------------------------------------------


def test_a_row_has_its_difference_and_choosing_it_names_it_in_the_address(open_view):
    view = open_view()
    said = ("The code is ", ""), ("582", "diff")
    rows = show_answers(
        view,
        answer_row(0, "Full cache", ("The code is 5829", "")),
        answer_row(1, "SnapKV", *said, outcome="missed", outcome_word="Missed"),
        answer_row(2, "AdaKV", *said, short=[("... 582", "diff")]),
    )
    mark = rows.nth(1).locator("mark")
    expect(mark).to_have_text("582")
    assert mark.evaluate("e => getComputedStyle(e).textDecorationLine") == "underline"
    expect(rows.nth(1)).to_contain_text("Missed")
    expect(rows.nth(1)).to_contain_text("17.4")
    assert rows.nth(0).get_by_role("button", name="Full cache").count() == 0
    buttons = view.page.locator("#answers .ckv-choose")
    expect(buttons.nth(0)).to_have_attribute("aria-pressed", "true")  # the first that evicts
    buttons.nth(0).focus()
    view.page.keyboard.press("ArrowDown")
    view.page.keyboard.press("Enter")
    expect(buttons.nth(1)).to_have_attribute("aria-pressed", "true")
    assert view.page.evaluate("location.hash") == "#variant=2"
    rows.nth(1).locator(".ckv-wrote").click()
    assert view.page.evaluate("location.hash") == "#variant=1"
    expect(rows.nth(2)).to_contain_text("... 582")
    rows.nth(2).get_by_role("button", name="Show all").click()
    expect(rows.nth(2).locator(".ckv-wrote")).to_have_text("The code is 582")
    rows.nth(2).get_by_role("button", name="Copy").click()
    rows.nth(2).get_by_role("button", name="Copied").wait_for()
    assert view.page.evaluate("navigator.clipboard.readText()") == "The code is 582"


def test_streaming_grows_the_same_nodes_and_no_row_jumps(open_view):
    view = open_view()
    page = view.page
    early = {"state": "waiting", "outcome": "", "mib": None, "agreement": None, "kept": False}
    names = ("Full cache", "SnapKV")
    rows = show_answers(view, *(answer_row(at, name, **early) for at, name in enumerate(names)))
    tops = "es => es.map(e => e.getBoundingClientRect().top)"
    before = rows.evaluate_all(tops)
    growing = {key: value for key, value in early.items() if key != "kept"}
    growing["state"] = "answering"
    show_answers(view, *(answer_row(at, n, ("A w", ""), **growing) for at, n in enumerate(names)))
    page.locator("#answers [role=log]").first.wait_for()
    rows.first.evaluate("e => { e.dataset.mine = '1'; }")
    show_answers(view, *(answer_row(at, n, ("A word.", "")) for at, n in enumerate(names)))
    expect(page.locator("#answers [role=log]")).to_have_count(0)
    assert rows.first.get_attribute("data-mine") == "1"
    assert rows.evaluate_all(tops) == before


# --- links and files ------------------------------------------------------------------------


def test_one_menu_has_the_files_that_the_run_has(open_view):
    view = open_view()
    page, bar = view.page, view.page.locator("#actions .ckv-acts")
    value = {"slug": "ab", "kind": "compare", "files": True, "report": True}
    view.send(actions={**value, "forced": False, "follow_ups": True})
    files = bar.locator("summary", has_text="Export")
    files.wait_for()
    again = bar.get_by_role("link", name="Run again")
    expect(again).to_have_attribute("href", "/?from=ab")  # the form of this run; nothing starts
    assert bar.get_by_role("link", name="Follow-ups (CSV)").count() == 0
    files.focus()
    page.keyboard.press("Enter")
    bar.get_by_role("link", name="Follow-ups (CSV)").wait_for()
    assert bar.get_by_role("link", name="Fidelity by token (CSV)").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Report (HTML)"
    page.keyboard.press("Escape")
    assert files.evaluate("e => e === document.activeElement && !e.parentElement.open")
    view.send(actions={**value, "forced": True, "follow_ups": False})
    files.click()
    bar.get_by_role("link", name="Fidelity by token (CSV)").wait_for()
    assert bar.get_by_role("link", name="Follow-ups (CSV)").count() == 0
    hrefs = bar.locator("a[download]").evaluate_all("es => es.map(e => e.getAttribute('href'))")
    assert {"/data/ab/forced.csv", "/data/ab/result.json"} <= set(hrefs)
    page.locator("h1").click()
    assert bar.get_by_role("link", name="Result (JSON)").count() == 0
