"""Pages in a real browser: on a phone, by keyboard, after a run that ended before its results."""

import dataclasses
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.ui.page_fakes import done_result, request
from tests.ui.served_app import served
from tests.ui.sweep_fakes import store_run

pytestmark = pytest.mark.e2e

LONG = "SnapKV + CriticalKV, alpha per head (ours)"
PHONE, DESK = {"width": 430, "height": 900}, {"width": 1440, "height": 900}


@dataclasses.dataclass(frozen=True)
class Site:
    """A served app with a finished run, and one that was cancelled while it waited."""

    url: str
    done: str
    cancelled: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("look"), with_logins=False) as app:
        result = done_result()
        result.variants[-1] = dataclasses.replace(result.variants[-1], label=LONG)
        done = store_run(app.services, request(), result)
        recorder = app.services._recorder
        cancelled = recorder.create(request(question="Never read?"))
        recorder.cancel(cancelled, "Cancelled on request.")
        yield Site(app.url, done, cancelled)


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport=DESK)
    yield page
    page.close()


def show(page: Page, address: str, size: dict[str, int]) -> None:
    page.set_viewport_size(size)
    page.goto(address)
    page.locator("[data-ready]").first.wait_for(state="attached")


def outside(page: Page, what: str) -> list[str]:
    """Texts of those that reach beyond the screen."""
    texts: list[str] = page.eval_on_selector_all(
        what,
        "all => all.filter(e => e.getBoundingClientRect().right > innerWidth)"
        ".map(e => e.textContent)",
    )
    return texts


def test_a_phone_shows_every_cell_of_the_methods(page: Page, site: Site):
    show(page, f"{site.url}/methods", PHONE)
    expect(page.locator("#methods td").last).to_be_visible()
    assert outside(page, "#methods td") == []
    assert Axe().run(page).response["violations"] == []


def test_a_phone_shows_what_can_be_done_with_a_run(page: Page, site: Site):
    show(page, f"{site.url}/runs", PHONE)
    page.locator(".ckv-run-table tbody tr").first.wait_for()
    assert outside(page, ".ckv-run-table td, .ckv-run-table button") == []
    expect(page.get_by_role("button", name="Delete").first).to_be_in_viewport()
    assert Axe().run(page).response["violations"] == []


def test_the_filters_say_by_what_the_list_is_filtered(page: Page, site: Site):
    show(page, f"{site.url}/runs?model=gone&sort=none", DESK)
    expect(page.locator("select[name=model]")).to_have_value("gone")
    expect(page.locator("select[name=sort]")).to_have_value("newest")


def test_escape_leaves_the_editor_of_a_run(page: Page, site: Site):
    show(page, f"{site.url}/runs", DESK)
    edit = page.get_by_role("button", name="Edit").first
    edit.click()
    page.keyboard.press("Escape")
    expect(page.locator(".ckv-editor")).to_have_count(0)
    expect(edit).to_be_focused()


def test_a_run_without_results_does_not_promise_them(page: Page, site: Site):
    show(page, f"{site.url}/run?id={site.cancelled}", DESK)
    expect(page.locator("#status")).to_contain_text("Cancelled on request.")
    expect(page.locator("#results .ckv-empty:visible")).to_have_count(0)
    expect(page.locator("#results h3:visible")).to_have_count(0)


def test_a_run_without_a_button_has_no_empty_bar(page: Page, site: Site):
    show(page, f"{site.url}/run?id={site.done}", DESK)
    expect(page.locator("#summary table")).to_be_visible()
    expect(page.locator("#actions")).to_be_hidden()


def test_a_phone_shows_the_whole_title_of_each_chart(page: Page, site: Site):
    show(page, f"{site.url}/run?id={site.done}", PHONE)
    page.locator("#charts [data-chart]").first.wait_for()
    for chart in page.locator("#charts [data-chart]").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".gtitle")).to_be_visible(timeout=20_000)
    titles = page.locator("#charts .gtitle").all_text_contents()
    assert any(LONG.replace(" ", "") in title.replace(" ", "") for title in titles), titles
    assert outside(page, "#charts .gtitle, #charts .gtitle-subtitle") == []
