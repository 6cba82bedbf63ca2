"""Pages in a real browser: on a phone, by keyboard, after a run that ended before its results."""

import dataclasses
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.steps import DESK, PHONE
from tests.factories.app import request, store_run
from tests.factories.runs import done_result

LONG = "CriticalKV-SnapKV (auto alpha)"


@dataclasses.dataclass(frozen=True)
class Site:
    """A served app with a finished run, and one that was cancelled while it waited."""

    url: str
    done: str
    cancelled: str


@pytest.fixture(scope="module")
def site(open_app) -> Site:
    result = done_result()
    result.variants[-1] = dataclasses.replace(result.variants[-1], label=LONG)
    done = store_run(open_app.services, request(), result)
    recorder = open_app.services._runs.recorder
    cancelled = recorder.create(request(question="Never read?"))
    recorder.end(cancelled, "cancelled", "Cancelled on request.")
    return Site(open_app.url, done, cancelled)


@pytest.fixture(scope="module")
def page(browser) -> Iterator[Page]:
    page = browser.new_page(viewport=DESK)
    yield page
    page.close()


@pytest.fixture(scope="module", params=[DESK, PHONE], ids=["desk", "phone"])
def run_page(request, browser, site) -> Iterator[Page]:
    """The finished run on a screen; whoever scrolls goes back to the top."""
    page = browser.new_page(viewport=request.param)
    show(page, f"{site.url}/run?id={site.done}", request.param)
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


def test_a_phone_shows_every_cell_of_the_methods(page, site):
    show(page, f"{site.url}/methods", PHONE)
    expect(page.locator("#methods td").last).to_be_visible()
    # A long formula scrolls in its own box.
    cells = "#methods td, #methods .ckv-method *:not(.ckv-formula *), #methods nav *"
    assert outside(page, cells) == []
    page.get_by_role("link", name="KeyDiff", exact=True).click()
    expect(page.locator("#method-keydiff")).to_be_focused()
    expect(page.locator("#method-keydiff h4")).to_be_in_viewport()
    assert page.url == f"{site.url}/methods#method-keydiff"
    page.reload()
    expect(page.locator("#method-keydiff")).to_be_focused()
    expect(page.locator("#method-keydiff h4")).to_be_in_viewport()


def test_a_phone_shows_what_can_be_done_with_a_run_and_escape_leaves_its_editor(page, site):
    show(page, f"{site.url}/runs", PHONE)
    page.locator(".ckv-run-table tbody tr").first.wait_for()
    assert outside(page, ".ckv-run-table td, .ckv-run-table button") == []
    actions = page.locator(".ckv-run-table summary").first
    actions.click()
    expect(page.get_by_role("button", name="Delete").first).to_be_in_viewport()
    page.get_by_role("button", name="Edit").first.click()
    page.keyboard.press("Escape")
    expect(page.locator(".ckv-editor")).to_have_count(0)
    expect(actions).to_be_focused()


def test_the_filters_say_by_what_the_list_is_filtered(page, site):
    show(page, f"{site.url}/runs?model=gone&sort=none", DESK)
    expect(page.locator("select[name=model]")).to_have_value("gone")
    expect(page.locator("select[name=sort]")).to_have_value("newest")


def test_a_run_without_results_does_not_promise_them(page, site):
    show(page, f"{site.url}/run?id={site.cancelled}", DESK)
    expect(page.locator("#status")).to_contain_text("Cancelled on request.")
    expect(page.locator("#results .ckv-empty:visible")).to_have_count(0)
    expect(page.locator("#results h3:visible")).to_have_count(0)


def test_the_sections_stay_in_reach_and_the_current_one_is_marked(run_page, site):
    page = run_page
    links = page.locator("#results .ckv-sections a")
    expect(links.first).to_have_attribute("aria-current", "true")
    heads = page.locator("#results :is(.section h3, .ckv-section-name):visible")
    assert links.all_inner_texts() == heads.all_inner_texts()
    kept = links.filter(has_text="Kept tokens")
    kept.focus()
    page.keyboard.press("Enter")
    head = heads.filter(has_text="Kept tokens")
    expect(head).to_be_focused()
    expect(head).to_be_in_viewport()
    expect(kept).to_have_attribute("aria-current", "true")
    expect(page.locator("#results .ckv-sections [aria-current]")).to_have_count(1)
    expect(kept).to_be_in_viewport(ratio=1)
    bar, top = page.locator("#results .ckv-sections").bounding_box(), head.bounding_box()
    assert 0 <= bar["y"] < bar["y"] + bar["height"] <= top["y"] < 160
    assert page.url.endswith(site.done)
    page.evaluate("scrollTo(0, 0)")


def test_a_phone_shows_the_outcome_beside_the_names_and_speaks_of_touch(browser, site):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.goto(f"{site.url}/run?id={site.done}")
    expect(page.locator("#summary thead th").nth(1)).to_contain_text("Outcome")
    for row in page.locator("#summary tbody tr").all():
        for cell in row.locator("th, td").all()[:3]:
            box = cell.bounding_box()
            assert box["x"] + box["width"] <= 390
    page.locator("#kept").scroll_into_view_if_needed()
    expect(page.locator("#kept .ckv-hint", has_text="or tap a token")).to_be_visible()
    expect(page.locator("#kept", has_text="click a token")).to_have_count(0)
    context.close()


def test_what_came_out_is_on_the_first_screen(run_page):
    page = run_page
    strip = page.get_by_role("region", name="What came out")
    expect(strip.get_by_role("status")).to_contain_text("both methods")
    for part in (strip.get_by_role("status"), strip.locator(".ckv-verdict-group").last):
        expect(part).to_be_in_viewport(ratio=1)
    names = strip.locator(".ckv-verdict-group li").all_inner_texts()
    assert len(names) == len(done_result().variants) - 1, "all but what they are compared with"
    # Before the timings.
    upper, lower = strip.bounding_box(), page.locator("#status").bounding_box()
    assert upper["y"] + upper["height"] <= lower["y"]
    # Without a button there is no empty bar.
    expect(page.locator("#summary table")).to_be_visible()
    expect(page.locator("#actions")).to_be_hidden()


def test_every_screen_shows_the_whole_title_of_each_chart(run_page):
    page = run_page
    page.locator("#charts [data-chart]").first.wait_for()
    for chart in page.locator("#charts [data-chart]").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".ckv-chart-title")).to_be_visible()
    titles = page.locator("#charts .ckv-chart-title").all_text_contents()
    assert any(LONG.replace(" ", "") in title.replace(" ", "") for title in titles), titles
    assert outside(page, "#charts .ckv-chart-title, #charts .ckv-chart-title + p") == []
    page.evaluate("scrollTo(0, 0)")


def test_the_theme_is_switched_by_keyboard_and_kept_on_all_pages(browser, site):
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto(f"{site.url}/runs?__theme=light")
    switch = page.locator(".ckv-theme")
    expect(switch).to_have_accessible_name("Theme: light")
    switch.focus()
    page.keyboard.press("Enter")
    expect(switch).to_have_accessible_name("Theme: dark")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(13, 16, 20)"
    assert page.url == f"{site.url}/runs"
    # Before any of Gradio's scripts runs, so nothing flashes.
    page.add_init_script(
        "document.onreadystatechange = () => { window.first ??= document.body.className; }"
    )
    page.goto(f"{site.url}/methods")
    assert page.evaluate("window.first") == "dark"
    page.goto(f"{site.url}/admin")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    page.get_by_role("button", name="Theme: dark").click()
    page.goto(f"{site.url}/caches")
    expect(page.get_by_role("button", name="Theme: system")).to_be_visible()
    expect(page.locator("body.dark")).to_have_count(0)
    context.close()


def test_the_question_mark_lists_the_keys_and_the_focus_comes_back(page, site):
    show(page, f"{site.url}/runs", DESK)
    search = page.get_by_label("Search title")
    search.fill("")
    search.press("?")
    expect(search).to_have_value("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_have_count(0)
    link = page.get_by_role("link", name="Methods", exact=True)
    link.focus()
    page.keyboard.press("?")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_text("Show the whole prompt")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(link).to_be_focused()


def test_a_run_of_this_browser_that_ended_is_said_on_another_page_and_only_there(page, site):
    def end(address: str) -> None:
        page.goto(f"{site.url}{address}")
        page.locator("[data-ready]").first.wait_for(state="attached")
        page.evaluate("slug => localStorage.setItem('ckv-open-runs', `[\"${slug}\"]`)", site.done)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_function("localStorage.getItem('ckv-open-runs') === '[]'")

    end(f"/run?id={site.done}")
    expect(page.locator(".ckv-toasts")).to_have_count(0)
    end("/methods")
    toast = page.locator(".ckv-toasts > *")
    expect(toast).to_contain_text("Done")
    expect(toast.get_by_role("link")).to_have_attribute("href", f"/run?id={site.done}")
    toast.get_by_role("button").click()
    expect(toast).to_have_count(0)
