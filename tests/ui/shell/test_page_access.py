"""axe-core finds nothing on any page, light and narrow or dark and wide."""

import dataclasses
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.steps import PHONE, expect_well_made_everywhere, open_sections, see_everything
from tests.factories.app import store_run, sweep_snapshot
from tests.factories.runs import analysed, mixed, sweep_result, with_changes

# Their runs hold both regimes, which no table and no chart passes over.
MIXED = ("sweep", "several", "few", "diagnostics")


@pytest.fixture(scope="module")
def pages(open_app) -> Iterator[dict[str, str]]:
    """Addresses by name; clicking Run on the Compare page shows a stored sweep."""
    slugs = []
    for at in range(2):
        result = mixed(sweep_result(better=0.4 + 0.05 * at, generated=True))
        # Two of the budgets have every mark and every row of the others.
        result.variants = [v for v in result.variants if v.params.get("budget", 64) <= 128]
        result.prompt = dataclasses.replace(result.prompt, token_ids=tuple(range(at, at + 10)))
        slugs.append(store_run(open_app.services, sweep_snapshot().request, result))
    diagnostics = mixed(analysed())
    asked = dataclasses.replace(
        sweep_snapshot().request,
        **dict.fromkeys(("budgets", "alphas", "places"), ()),
        variants=tuple(v.spec for v in diagnostics.variants),
        analysis=("bounds", "forced"),
    )
    other = {"agreement": 0.25, "token_ids": (1, 9), "token_texts": ("one", " <b>x</b>")}
    changed = with_changes(diagnostics, lambda each: dataclasses.replace(each, **other))
    compared = [store_run(open_app.services, asked, each) for each in (diagnostics, changed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_app.services, "start_run", lambda *_: slugs[0])
        yield {
            **{name: f"{open_app.url}/{name}" for name in ("", "runs")},
            "sweep": open_app.url,
            "several": f"{open_app.url}/several?ids={','.join(slugs)}",
            "few": f"{open_app.url}/several?ids={','.join(compared)}",
            "diagnostics": f"{open_app.url}/run?id={compared[0]}",
        }


def open_all(page: Page) -> None:
    """The closed sections of a result, on a phone behind the last tab."""
    page.get_by_role("tab", name="More").click()
    for line in page.locator(".ckv-fold-line").all():
        line.press("Enter")


def show(page: Page, name: str) -> None:
    """Wait for what the page is about, and for all of its charts."""
    if name == "sweep":
        page.locator("#context textarea").fill("some words here. " * 40)
        page.locator("#budget input").fill("64, 128")
        page.get_by_role("button", name="Run", exact=True).click()
    if name == "":
        page.get_by_role("button", name="Advanced").click()
    marks = {
        "sweep": "#grid .ckv-point",
        "several": "#several-table tbody tr",
        "few": "#several-beside tbody tr",
        "diagnostics": "#diagnostics [data-chart=tightness]",
    }
    page.locator(marks.get(name, "header.ckv-header")).first.wait_for(state="attached")
    if name == "diagnostics":
        open_all(page)
    if name == "sweep":
        open_sections(page)
    see_everything(page)
    for chart in page.locator("[data-chart]").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".main-svg").first).to_be_visible()


@pytest.mark.parametrize("name", ["", "runs", "sweep", "several", "few", "diagnostics"])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(context, pages, name):
    page = context.new_page()
    page.set_viewport_size(PHONE)
    address = pages[name]
    page.goto(f"{address}{'&' if '?' in address else '?'}__theme=light")
    show(page, name)
    if name == "few":
        expect(page.locator("#several-beside mark").first).to_have_text(" <b>x</b>")
    if name in MIXED:
        heads = page.locator(".ckv-regimes:visible").all_inner_texts()
        assert heads
        assert len(heads) == 1 or name in ("several", "few"), (
            "what came out says it for the whole page"
        )
        assert all(text.startswith("Query-aware methods ") for text in heads)
        regimes = {*page.locator(".ckv-regime:visible").all_inner_texts()}
        assert regimes == {"query-aware", "query-agnostic"}
    expect_well_made_everywhere(page)
    page.close()
