"""Status bar, summary table and generations in a real browser."""

from tests.ui.components.components_lab import HOSTILE, LOOK, card

STAGES = [
    {"name": "load", "label": "Load", "state": "done", "ms": 920},
    {"name": "prefill", "label": "Prefill", "state": "active", "ms": None},
    {"name": "decode", "label": "Decode", "state": "waiting", "ms": None},
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


COLUMNS = [
    {"key": "kept", "label": "Kept", "help": "Entries kept.", "unit": "entries", "align": "right"},
    {"key": "answer", "label": "Answer", "help": "", "unit": "", "align": "left"},
]


def summary(label: str = "SnapKV", kept: str = "11,520") -> dict[str, object]:
    cells = {
        "kept": {"text": kept, "title": "asked 11,520", "tone": ""},
        "answer": {"text": "missing", "title": "", "tone": "warn"},
    }
    row = {"look": LOOK, "label": label, "spec": "snapkv", "cells": cells}
    return {"columns": COLUMNS, "rows": [row], "notes": ["One note."]}


def test_components_without_a_value_are_quiet(open_view):
    view = open_view()
    assert view.page.locator("#status .ckv-status").is_hidden()
    for name in ("summary", "generations", "kept"):
        assert view.page.locator(f"#{name} .ckv-empty").is_visible()


def test_status_bar_shows_stage_fraction_and_time(open_view):
    view = open_view()
    view.send(status=status())
    bar = view.page.locator("#status [role=progressbar]")
    bar.wait_for()
    assert bar.get_attribute("aria-valuenow") == "25"
    live = view.page.locator("#status [role=status]")
    assert "Running" in live.inner_text()
    assert "layer 8 of 30" in live.inner_text()
    assert view.page.locator("#status [aria-current=step]").inner_text().startswith("▸")
    assert "920 ms" in view.page.locator("#status .ckv-stages").inner_text()
    view.send(status=status(fraction=None))
    view.page.wait_for_selector("#status [role=progressbar]:not([aria-valuenow])")


def test_status_bar_says_what_happened(open_view):
    view = open_view()
    for sentence, changes in {
        "2 runs are ahead of this one": {"state": "queued", "queue_ahead": 2},
        "Starts next": {"state": "queued", "queue_ahead": 0},
        "The worker died.": {"state": "failed", "reason": "The worker died. Start again."},
        "Cancelled by you.": {"state": "cancelled", "reason": "Cancelled by you."},
    }.items():
        view.send(status=status(**changes))
        view.page.locator("#status [role=status]", has_text=sentence).wait_for()
        assert view.page.locator("#status [role=progressbar]").is_hidden()


def test_summary_is_a_table_with_headers_and_help_by_keyboard(open_view):
    view = open_view()
    view.send(summary=summary())
    page = view.page
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


def test_summary_downloads_csv_without_formulas(open_view):
    view = open_view()
    view.send(summary=summary('=HYPERLINK("x")', "-1.5"))
    view.page.locator("#summary .ckv-table tbody tr").wait_for()
    with view.page.expect_download() as download:
        view.page.get_by_role("button", name="Download CSV").click()
    lines = download.value.path().read_text("utf-8").splitlines()
    assert lines[0] == '"Variant","SPEC","Kept (entries)","Answer"'
    assert lines[1] == '"\'=HYPERLINK(""x"")","snapkv","-1.5","missing"'


def test_extra_columns_are_shown_on_demand_by_keyboard_and_always_downloaded(open_view):
    view = open_view()
    value = summary()
    value["columns"] = [COLUMNS[0], {**COLUMNS[1], "extra": True}]
    view.send(summary=value)
    page = view.page
    more = page.get_by_role("button", name="1 more column", exact=True)
    more.wait_for()
    heads = page.locator("#summary thead th[scope=col]")
    assert (heads.count(), more.get_attribute("aria-expanded")) == (2, "false")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert '"Answer"' in download.value.path().read_text("utf-8")
    more.focus()
    page.keyboard.press("Enter")
    fewer = page.get_by_role("button", name="Fewer columns", exact=True)
    fewer.wait_for()
    assert (heads.count(), fewer.get_attribute("aria-expanded")) == (3, "true")
    assert fewer.evaluate("e => e === document.activeElement")
    assert fewer.get_attribute("aria-controls") == page.locator("#summary table").get_attribute(
        "id"
    )


def test_generations_mark_the_first_difference(open_view):
    view = open_view()
    cards = [
        card(0, "Full cache", ["The ", "code ", "is ", "7421"], reference=True, stopped="eos"),
        card(
            1,
            "SnapKV",
            ["The ", "code ", "was ", "lost"],
            first_difference=2,
            stopped="length",
            answer="missing",
        ),
        card(2, "AdaKV", ["The ", "code "], first_difference=2, stopped="eos"),
    ]
    view.send(generations={"cards": cards, "answer": "7421"})
    page = view.page
    second = page.locator("#generations .ckv-card").nth(1)
    second.wait_for()
    assert second.locator("mark").inner_text().strip() == "was"
    assert second.locator("mark").evaluate("e => getComputedStyle(e).textDecorationLine") == (
        "underline"
    )
    assert "Differs from token 3 on" in second.inner_text()
    assert "answer missing" in second.inner_text()
    assert page.locator("#generations .ckv-card").nth(2).locator("mark").inner_text() == "⟨end⟩"
    assert page.locator("#generations .ckv-card").nth(0).locator("mark").is_hidden()
    second.get_by_role("button", name="Copy").click()
    second.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "The code was lost"


def test_streaming_grows_the_same_nodes(open_view):
    view = open_view()
    page = view.page
    view.send(generations={"cards": [card(0, "Full cache", ["a"], status="generating")]})
    page.locator("#generations [role=log]").wait_for()
    page.evaluate("document.querySelector('#generations .ckv-card').dataset.mine = '1'")
    page.get_by_role("button", name="Stream").click()
    last = page.locator("#generations .ckv-text", has_text="word19")
    last.nth(1).wait_for()
    assert page.locator("#generations .ckv-card").first.get_attribute("data-mine") == "1"
    assert last.first.inner_text().split() == [f"word{i}" for i in range(20)]
    view.send(generations={"cards": [card(0, "Full cache", ["a"], stopped="eos")]})
    page.wait_for_function("document.querySelectorAll('#generations [role=log]').length === 0")
    assert page.locator("#generations .ckv-card").count() == 1


def test_hostile_text_stays_text_and_nothing_widens_the_page(open_view):
    view = open_view()
    word = HOSTILE + "x" * 2000
    hostile = summary(word, HOSTILE)
    hostile["notes"] = [word]
    view.send(
        status=status(detail=word, chips=[HOSTILE]),
        summary=hostile,
        generations={
            "cards": [
                card(0, word, [HOSTILE, word], spec=word, chips=[HOSTILE], first_difference=0)
            ],
            "answer": word,
        },
    )
    view.page.locator("#generations .ckv-card").wait_for()
    for name in ("status", "summary", "generations"):
        assert HOSTILE in view.page.locator(f"#{name}").text_content()
        assert view.page.locator(f"#{name} img").count() == 0
    for width in (430, 1600):
        view.page.set_viewport_size({"width": width, "height": 1000})
        assert view.page.evaluate("document.documentElement.scrollWidth") == width


def test_a_wide_table_scrolls_and_its_first_column_stays(open_view):
    view = open_view(width=430)
    value = summary()
    value["columns"] = [{**COLUMNS[0], "label": f"Column number {i}"} for i in range(9)]
    view.send(summary=value)
    page = view.page
    page.get_by_role("rowheader", name="SnapKV").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 430
    scroller = page.locator("#summary .ckv-scroll")
    head = page.locator("#summary tbody th")
    before = head.bounding_box()
    assert scroller.evaluate("e => { e.scrollLeft = 300; return e.scrollLeft; }") == 300
    assert head.bounding_box() == before


def test_one_menu_has_the_files_that_the_run_has(open_view):
    view = open_view()
    page, bar = view.page, view.page.locator("#links nav")
    value = {"slug": "ab", "kind": "compare", "files": True, "report": True, "pairs": []}
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
    pairs = [{"a": 0, "b": 1, "text": HOSTILE}]
    view.send(links={**value, "forced": True, "follow_ups": False, "pairs": pairs})
    files.click()
    bar.get_by_role("link", name="Fidelity by token (CSV)").wait_for()
    assert bar.get_by_role("link", name="Follow-ups (CSV)").count() == 0
    bar.get_by_role("link", name=HOSTILE).wait_for()
    hrefs = bar.locator("a[download]").evaluate_all("es => es.map(e => e.getAttribute('href'))")
    assert {"/data/ab/forced.csv", "/data/ab/result.json"} <= set(hrefs)
    page.locator("h1").click()
    assert bar.get_by_role("link", name="Result (JSON)").count() == 0


def test_cards_are_as_high_as_their_text_and_captions_stand_once(open_view):
    view = open_view()
    long = [f"word{i} " for i in range(90)]
    cards = [
        card(0, "Full cache", ["Short."], reference=True, stopped="eos"),
        card(1, "SnapKV", long, stopped="eos", first_difference=0),
    ]
    view.send(generations={"cards": cards, "answer": ""})
    grid, texts = view.page.locator("#generations"), view.page.locator("#generations .ckv-text")
    texts.nth(1).wait_for()
    heights = texts.evaluate_all("es => es.map(e => [e.clientHeight, e.scrollHeight])")
    assert [shown for shown, _ in heights] == [whole for _, whole in heights]
    assert heights[0][0] < 40
    assert heights[1][0] > 80
    boxes = [box.bounding_box() for box in view.page.locator("#generations .ckv-card").all()]
    assert boxes[0]["height"] < boxes[1]["height"] - 40
    assert grid.inner_text().count("stopped at EOS") == 1
    cards[1]["stopped"] = "length"
    view.send(generations={"cards": cards, "answer": ""})
    grid.get_by_text("90 tokens, reached the token limit.").wait_for()
    assert grid.inner_text().count("stopped at EOS") == 1
