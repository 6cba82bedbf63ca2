"""Pages in a real browser: on a phone, by keyboard, after a run that ended before its results."""

import dataclasses

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.steps import DESK, PHONE, expect_well_made
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
    for method in ("adakv", "pyramidkv", "h2o", "tova"):
        one = dataclasses.replace(result.variants[1], spec=f"{method}:budget=4", method=method)
        result.variants.insert(-1, dataclasses.replace(one, label=method))
    result.variants[-1] = dataclasses.replace(result.variants[-1], label=LONG)
    done = store_run(open_app.services, request(), result)
    recorder = open_app.services._runs.recorder
    cancelled = recorder.create(request(question="Never read?"))
    recorder.end(cancelled, "cancelled", "Cancelled on request.")
    return Site(open_app.url, done, cancelled)


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
    page.locator(".ckv-served td").last.wait_for()
    # A long formula scrolls in its own box, and so do tables of many columns.
    page.locator("#methods details").evaluate_all("all => all.forEach((e) => { e.open = true; })")
    cells = "#servers ~ p, #parameters td, #methods .ckv-method *:not(.ckv-formula *)"
    assert outside(page, cells) == []
    page.locator('.ckv-served a[href="methods#reason-3"]').first.click()
    expect(page.locator("#reason-3")).to_be_focused()
    assert page.url == f"{site.url}/methods#reason-3"
    page.goto(f"{site.url}/methods#method-keydiff")
    page.reload()
    expect(page.locator("#method-keydiff > summary")).to_be_focused()
    expect(page.locator("#method-keydiff .ckv-formula")).to_be_in_viewport()


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


def test_a_run_without_results_does_not_promise_them(page, site):
    show(page, f"{site.url}/run?id={site.cancelled}", DESK)
    expect(page.locator("#verdict")).to_contain_text("Cancelled on request.")
    expect(page.locator("#results .ckv-empty:visible")).to_have_count(0)
    expect(page.locator("#results :is(h3, .ckv-fold-line):visible")).to_have_count(0)
    page.set_viewport_size(PHONE)
    expect(page.get_by_role("tab")).to_have_count(0)
    expect(page.get_by_role("button", name="Receipts and provenance")).to_be_visible()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_first_screen_has_the_verdict_and_the_answers_and_the_page_is_short(
    browser, site, size
):
    page = browser.new_page(viewport=size)
    page.goto(f"{site.url}/run?id={site.done}&__theme={'dark' if size == PHONE else 'light'}")
    strip = page.get_by_role("region", name="What came out")
    expect(strip.get_by_role("status")).to_contain_text("6 methods")
    expect(strip.get_by_role("status")).to_be_in_viewport(ratio=1)
    rows = page.locator("#answers tbody tr")
    expect(rows).to_have_count(1 + 6)
    expect(rows.nth(1).locator(".ckv-wrote")).to_be_in_viewport(ratio=1)
    expect(page.locator("#acts summary").first).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight") <= 3_000
    drawn = page.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
    assert not [name for name in drawn if "/figure/" in name or "plotly" in name]
    expect_well_made(page)
    page.close()


def test_on_a_phone_the_parts_are_tabs(browser, site):
    page = browser.new_page(viewport=PHONE)
    show(page, f"{site.url}/run?id={site.done}", PHONE)
    tabs = page.get_by_role("tab")
    expect(page.locator("#answers table")).to_be_visible()
    expect(page.locator("#kept")).to_be_hidden()
    tabs.nth(0).focus()
    page.keyboard.press("ArrowRight")
    expect(tabs.nth(1)).to_be_focused()
    expect(page.locator("#kept")).to_be_visible()
    expect(page.locator("#answers table")).to_be_hidden()
    page.locator("#kept [data-state=shown], #kept[data-state=shown]").wait_for()
    expect_well_made(page)
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="Perturbation")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size(DESK)
    expect(page.locator("#kept")).to_be_visible()
    expect(page.locator("#answers table")).to_be_visible()
    expect(tabs.first).to_be_hidden()
    page.close()


@pytest.mark.parametrize("page_with", [("/", "#actions"), ("/run?id={}", "#acts")])
def test_the_end_of_a_page_is_above_the_bar_of_a_phone(page, site, page_with):
    path, bar = page_with
    show(page, site.url + path.format(site.done), PHONE)
    expect(page.locator(f"{bar} .ckv-button, {bar} button").first).to_be_visible()
    end = page.evaluate(
        """(bar) => {
          const main = document.querySelector(".gradio-container > .main");
          scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
          const padding = parseFloat(getComputedStyle(main).paddingBottom);
          const content = main.getBoundingClientRect().bottom - padding;
          return [content, document.querySelector(bar).getBoundingClientRect().top];
        }""",
        bar,
    )
    assert end[0] <= end[1]


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
    # A script of Gradio's gives its own element a ground.
    own = "getComputedStyle(document.querySelector('gradio-app')).backgroundColor"
    assert page.evaluate(own) == ground
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
