"""axe-core finds nothing on the pages of sweeps, of several runs, and in the laboratory."""

import dataclasses
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.steps import see_everything
from tests.ui.analysed_run import analysed
from tests.ui.served_app import served
from tests.ui.sweep_fakes import store_run, sweep_result, sweep_snapshot

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses by name; clicking Run on the Sweep page shows a stored sweep."""
    with served(tmp_path_factory.mktemp("pages"), with_logins=False) as app:
        slugs = []
        for at in range(5):
            result = sweep_result(better=0.4 + 0.05 * at, generated=True)
            result.prompt = dataclasses.replace(result.prompt, token_ids=tuple(range(at, at + 10)))
            slugs.append(store_run(app.services, sweep_snapshot().request, result))
        laboratory = analysed()
        asked = dataclasses.replace(
            sweep_snapshot().request,
            kind="compare",
            variants=tuple(v.spec for v in laboratory.variants),
            analysis=("bounds", "forced"),
        )
        compared = [store_run(app.services, asked, laboratory) for _ in range(2)]
        app.services.start_run = lambda *_: slugs[0]
        yield {
            "sweep": f"{app.url}/sweep",
            "aggregate": f"{app.url}/aggregate?ids={','.join(slugs)}",
            "compare-runs": f"{app.url}/compare-runs?ids={','.join(compared)}",
            "laboratory": f"{app.url}/run?id={compared[0]}",
        }


def show(page: Page, name: str) -> None:
    """Wait for what the page is about, and for all of its charts."""
    if name == "sweep":
        page.locator("#context textarea").fill("some words here. " * 40)
        page.get_by_role("button", name="Run", exact=True).click()
    marks = {
        "sweep": "#sweep-points tbody tr",
        "aggregate": "#aggregate-table tbody tr",
        "compare-runs": "#differences tbody tr",
        "laboratory": "#laboratory [data-chart=tightness]",
    }
    page.locator(marks[name]).first.wait_for()
    if name == "laboratory":
        for summary in page.locator("#generations summary:visible").all():
            summary.click()
    see_everything(page)
    for chart in page.locator("[data-chart]").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".main-svg").first).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("name", ["sweep", "aggregate", "compare-runs", "laboratory"])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(
    browser: Browser, pages: dict[str, str], name: str
) -> None:
    page = browser.new_page(viewport={"width": 430, "height": 900})
    page.set_default_timeout(20_000)
    address = pages[name]
    page.goto(f"{address}{'&' if '?' in address else '?'}__theme=light")
    show(page, name)
    check(page, 430)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate("document.body.classList.add('dark')")
    check(page, 1440)
    page.close()


def check(page: Page, width: int) -> None:
    # Colours fade from one theme to the other.
    page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:5]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
