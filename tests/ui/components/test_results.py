"""Status bar, summary table, generations, strips and links in a real browser; and axe on all."""

from typing import Any

from playwright.sync_api import Locator, expect

from tests.ui.components.lab import HOSTILE, LOOK, View, card

STAGES = [
    {"name": "load", "label": "Load", "state": "done", "ms": 920},
    {"name": "prefill", "label": "Prefill", "state": "active", "ms": None},
    {"name": "decode", "label": "Decode", "state": "waiting", "ms": None},
]
VARIANT = {"key": "variant", "label": "Variant", "align": "left"}
COLUMNS = [
    {"key": "kept", "label": "Kept", "help": "Entries kept.", "unit": "entries", "align": "right"},
    {"key": "answer", "label": "Answer", "help": "", "unit": "", "align": "left"},
]


def status(**changes: object) -> dict[str, object]:
    return {
        "state": "running",
        "stage": "prefill",
        "stages": STAGES,
        "fraction": 0.25,
        "detail": "layer 8 of 30",
        "reason": "",
        "queue_ahead": 0,
        "elapsed_s": 3.2,
        "chips": ["cpu"],
        **changes,
    }


def summary(label: str = "SnapKV", kept: str = "11,520", **changes: Any) -> dict[str, Any]:
    cells = {
        "variant": {"text": label, "spec": "snapkv"},
        "kept": {"text": kept, "title": "asked 11,520", "tone": ""},
        "answer": {"text": "missing", "title": "", "tone": "warn"},
    }
    row = {"look": LOOK, "cells": cells}
    table = {"caption": "Figures", "rows": [row], "note": "One note.", "file": "summary.csv"}
    return table | {"columns": [VARIANT, *COLUMNS]} | changes


def show_cards(view: View, *cards: dict[str, Any], answer: str = "") -> Locator:
    """Their nodes, once all are there."""
    view.send(generations={"cards": cards, "answer": answer})
    found = view.page.locator("#generations .ckv-card")
    found.nth(len(cards) - 1).wait_for()
    return found


def test_components_without_a_value_are_quiet(open_view):
    page = open_view(anew=True).page
    assert page.locator("#status .ckv-status").is_hidden()
    assert page.locator("#summary .ckv-scroll").is_hidden()
    for name in ("generations", "kept"):
        assert page.locator(f"#{name} .ckv-empty").is_visible()


def test_status_bar_shows_stage_fraction_and_time(open_view):
    view = open_view()
    page = view.send(status=status()).page
    bar = page.locator("#status").get_by_role("progressbar", include_hidden=True)
    bar.wait_for()
    expect(bar).to_have_js_property("value", 0.25)
    live = page.locator("#status [role=status]")
    assert "Running" in live.inner_text()
    assert "layer 8 of 30" in live.inner_text()
    assert page.locator("#status [aria-current=step]").inner_text().startswith("▸")
    assert "920 ms" in page.locator("#status .ckv-stages").inner_text()
    view.send(status=status(fraction=None))
    expect(bar).to_have_js_property("position", -1)
    for sentence, changes in {
        "2 runs are ahead of this one": {"state": "queued", "queue_ahead": 2, "detail": ""},
        "Starts next": {"state": "queued", "queue_ahead": 0, "detail": ""},
        "The worker died.": {"state": "failed", "reason": "The worker died. Start again."},
        "Cancelled by you.": {"state": "cancelled", "reason": "Cancelled by you."},
    }.items():
        view.send(status=status(**changes))
        expect(live).to_contain_text(sentence)
        assert bar.is_hidden()


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


def test_a_wide_table_scrolls_and_its_first_column_stays(open_view):
    columns = [{**COLUMNS[0], "label": f"Column number {i}"} for i in range(9)]
    page = open_view(width=430).send(summary=summary(columns=[VARIANT, *columns])).page
    page.get_by_role("rowheader", name="SnapKV").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 430
    head = page.locator("#summary tbody th")
    before = head.bounding_box()
    scrolled = "e => { e.scrollLeft = 300; return e.scrollLeft; }"
    assert page.locator("#summary .ckv-scroll").evaluate(scrolled) == 300
    assert head.bounding_box() == before


# --- generated texts ------------------------------------------------------------------------


def test_generations_mark_the_first_difference(open_view):
    view = open_view()
    lost = {"first_difference": 2, "stopped": "length", "answer": "missed"}
    first, second, third = show_cards(
        view,
        card(0, "Full cache", ["The ", "code ", "is ", "7421"], reference=True, stopped="eos"),
        card(1, "SnapKV", ["The ", "code ", "was ", "lost"], **lost),
        card(2, "AdaKV", ["The ", "code "], first_difference=2, stopped="eos"),
        answer="7421",
    ).all()
    mark = second.locator("mark")
    assert mark.inner_text().strip() == "was"
    assert mark.evaluate("e => getComputedStyle(e).textDecorationLine") == "underline"
    assert "Differs from token 3 on" in second.inner_text()
    assert "missed" in second.inner_text()
    assert third.locator("mark").inner_text() == "⟨end⟩"
    assert first.locator("mark").is_hidden()
    second.get_by_role("button", name="Copy").click()
    second.get_by_role("button", name="Copied").wait_for()
    assert view.page.evaluate("navigator.clipboard.readText()") == "The code was lost"


def test_streaming_grows_the_same_nodes(open_view):
    view = open_view()
    page, words = view.page, [f"word{i} " for i in range(20)]
    shown = show_cards(view, card(0, "Full cache", ["a"], status="generating"))
    page.locator("#generations [role=log]").wait_for()
    shown.evaluate("e => { e.dataset.mine = '1'; }")
    for end in (1, 2, 20):
        show_cards(view, *(card(at, "X", words[:end], status="generating") for at in (0, 1)))
    last = page.locator("#generations .ckv-text", has_text="word19")
    last.nth(1).wait_for()
    assert shown.first.get_attribute("data-mine") == "1"
    assert last.first.inner_text().split() == "".join(words).split()
    show_cards(view, card(0, "Full cache", ["a"], stopped="eos"))
    expect(page.locator("#generations [role=log]")).to_have_count(0)
    assert shown.count() == 1


def test_cards_are_as_high_as_their_text_and_captions_stand_once(open_view):
    view = open_view()
    full = card(0, "Full cache", ["Short."], reference=True, stopped="eos")
    long = card(1, "SnapKV", [f"word{i} " for i in range(90)], first_difference=0)
    cards = show_cards(view, full, long | {"stopped": "eos"})
    grid, texts = view.page.locator("#generations"), view.page.locator("#generations .ckv-text")
    texts.nth(1).wait_for()
    heights = texts.evaluate_all("es => es.map(e => [e.clientHeight, e.scrollHeight])")
    assert [shown for shown, _ in heights] == [whole for _, whole in heights]
    assert heights[0][0] < 40
    assert heights[1][0] > 80
    first, second = (box.bounding_box()["height"] for box in cards.all())
    assert first < second - 40
    assert grid.inner_text().count("stopped at EOS") == 1
    show_cards(view, full, long | {"stopped": "length"})
    grid.get_by_text("90 tokens, reached the token limit.").wait_for()
    assert grid.inner_text().count("stopped at EOS") == 1


def test_hostile_text_stays_text_and_nothing_widens_the_page(open_view):
    view = open_view()
    word = HOSTILE + "x" * 2000
    view.send(
        status=status(detail=word, chips=[HOSTILE]), summary=summary(word, HOSTILE, notes=[word])
    )
    texts = {"spec": word, "chips": [HOSTILE], "first_difference": 0}
    show_cards(view, card(0, word, [HOSTILE, word], **texts), answer=word)
    for name in ("status", "summary", "generations"):
        assert HOSTILE in view.page.locator(f"#{name}").text_content()
        assert view.page.locator(f"#{name} img").count() == 0
    for width in (430, 1600):
        view.page.set_viewport_size({"width": width, "height": 1000})
        assert view.page.evaluate("document.documentElement.scrollWidth") == width


# --- the fidelity strip under a text --------------------------------------------------------

ADDRESS = "/data/strip/1/forced"
STRIP = {
    "tokens": ["The", " code", HOSTILE],
    "top1": [1, 1, 0],
    "kl": [0.0, 0.02, 2.5],
    "rank": [1, 1, 4],
    "steps": [
        {"full": [{"text": text, "probability": 0.9}], "variant": [{"text": "x", "probability": p}]}
        for text, p in ((" The", 0.5), (" code", 0.5), (HOSTILE, 0.0001))
    ],
}


def show_strip(view: View, **answer: object) -> Locator:
    """What is told of the strip, fetched from an address that answers this."""
    view.page.route(f"**{ADDRESS}", lambda route: route.fulfill(**answer))
    show_cards(
        view,
        card(0, "Full cache", ["The", " code"], reference=True, stopped="eos"),
        card(1, "SnapKV", ["The", " lock"], stopped="eos", first_difference=1, forced=ADDRESS),
    )
    return view.page.locator(".ckv-strip-message:visible")


def test_arrows_tell_each_position_and_enter_opens_both_distributions(open_view):
    view = open_view()
    page, told = view.page, show_strip(view, json=STRIP)
    box = page.get_by_role("listbox", name="Fidelity of SnapKV")
    expect(box.get_by_role("option")).to_have_count(3)
    expect(told).to_have_text(
        "Same first choice at 2 of n = 3 positions; first divergence at token 3."
    )
    box.focus()
    page.keyboard.press("Home")
    expect(told).to_contain_text("token 1")
    page.keyboard.press("End")
    expect(told).to_contain_text("KL 2.50 nats, rank 4, another first choice, first divergence")
    assert HOSTILE in told.inner_text()
    page.keyboard.press("Enter")
    detail = page.locator(".ckv-strip-detail:visible")
    for words in ("Candidates for token 3", "90%", "<0.1%"):
        expect(detail).to_contain_text(words)
    assert page.locator(".ckv-strip img").count() == 0
    page.keyboard.press("Escape")
    expect(detail).to_have_count(0)


def test_a_strip_that_cannot_be_fetched_says_so(open_view, faults):
    faults.expect("503")
    view = open_view()
    expect(show_strip(view, status=503)).to_have_text(
        "The strip could not be fetched: the server answered 503."
    )


# --- links and files ------------------------------------------------------------------------


def test_one_menu_has_the_files_that_the_run_has(open_view):
    view = open_view()
    page, bar = view.page, view.page.locator("#links nav")
    value = {"slug": "ab", "kind": "compare", "files": True, "report": True}
    view.send(links={**value, "forced": False, "follow_ups": True})
    files = bar.locator("summary", has_text="Files")
    files.wait_for()
    assert bar.get_by_role("link", name="Follow-ups (CSV)").count() == 0
    files.focus()
    page.keyboard.press("Enter")
    bar.get_by_role("link", name="Follow-ups (CSV)").wait_for()
    assert bar.get_by_role("link", name="Fidelity by token (CSV)").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Report (HTML)"
    page.keyboard.press("Escape")
    assert files.evaluate("e => e === document.activeElement && !e.parentElement.open")
    view.send(links={**value, "forced": True, "follow_ups": False})
    files.click()
    bar.get_by_role("link", name="Fidelity by token (CSV)").wait_for()
    assert bar.get_by_role("link", name="Follow-ups (CSV)").count() == 0
    hrefs = bar.locator("a[download]").evaluate_all("es => es.map(e => e.getAttribute('href'))")
    assert {"/data/ab/forced.csv", "/data/ab/result.json"} <= set(hrefs)
    page.locator("h1").click()
    assert bar.get_by_role("link", name="Result (JSON)").count() == 0
