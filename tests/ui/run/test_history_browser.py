"""The browser's Back, Forward and Reload lose nothing: form, run and choice of runs."""

import dataclasses
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e import steps
from tests.factories.app import ENDLESS, request, script, store_run
from tests.factories.runs import done_result
from tests.ui.served_app import Served

pytestmark = pytest.mark.e2e

TEXT = "Ships came and went, and the weather was fair."


@pytest.fixture(scope="module")
def app(open_app) -> Served:
    return open_app


@pytest.fixture(scope="module")
def context(browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport=steps.DESK) as context:
        yield context


@pytest.fixture
def page(context) -> Iterator[Page]:
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda told: errors.append(told.text) if told.type == "error" else None)
    yield page
    page.close()
    assert errors == []


def open_form(page: Page, url: str) -> None:
    """Wait until the form listens: what is typed and clicked before is lost."""
    page.goto(url)
    page.locator("#context-bar [data-ready]").wait_for(state="attached")


def reload_often(page: Page) -> None:
    """Again before all has come; the fixture `page` finds what is logged of it."""
    for _ in range(3):
        page.locator("#status [data-state]").wait_for()
        page.reload(wait_until="commit")


def test_back_after_a_run_shows_the_form_and_forward_the_run(app, page, monkeypatch):
    slug = store_run(app.services, request(context=TEXT), done_result())
    monkeypatch.setattr(app.services, "start_run", lambda *_: slug)
    open_form(page, f"{app.url}/?__theme=dark")
    context = page.locator("#context textarea")
    context.fill(TEXT)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url(f"**/run?id={slug}&__theme=dark")
    expect(page).to_have_title(f"Run {slug} - CriticalKV Lab")
    expect(context).to_be_hidden()
    context.evaluate("node => { node.dataset.same = 'yes' }")

    page.go_back()
    expect(context).to_be_in_viewport()
    expect(context).to_have_value(TEXT)
    expect(context).to_have_attribute("data-same", "yes")  # nothing was loaded anew
    expect(page).to_have_title("Compare - CriticalKV Lab")
    page.go_forward()
    expect(context).to_be_hidden()
    expect(page.locator("#summary table")).to_be_visible()

    reload_often(page)
    expect(page.locator("#summary table")).to_be_visible()
    page.go_back()
    expect(context).to_have_value(TEXT)  # filled in from the run


def test_back_after_a_second_run_shows_the_form_of_that_run(app, page, monkeypatch):
    slugs = [store_run(app.services, request(context=word), done_result()) for word in "ab"]
    starts = iter(slugs)
    monkeypatch.setattr(app.services, "start_run", lambda *_: next(starts))
    open_form(page, app.url)
    for word, slug in zip("ab", slugs, strict=True):
        page.locator("#context textarea").fill(word)
        page.get_by_role("button", name="Run", exact=True).click()
        page.wait_for_url(f"**/run?id={slug}")
        page.get_by_role("button", name="Settings:").click()
    page.go_back()
    assert page.url == f"{app.url}/?from={slugs[1]}"
    expect(page.locator("#context textarea")).to_have_value("b")
    page.go_back()
    page.wait_for_url(f"**/?from={slugs[0]}")
    expect(page.locator("#context textarea")).to_have_value("a")


def test_back_to_the_list_finds_the_same_runs_chosen(app, page):
    for context in ("one", "two", "three"):
        result = done_result()
        tokens = tuple(ord(letter) for letter in context.ljust(10))
        result.prompt = dataclasses.replace(result.prompt, token_ids=tokens)
        store_run(app.services, request(context=context), result)
    page.goto(f"{app.url}/runs")
    boxes = page.locator("#runs input[data-slug]")
    slugs = [boxes.nth(at).get_attribute("data-slug") for at in (0, 2)]
    for slug in slugs:
        page.locator(f"#runs input[data-slug='{slug}']").check()
    chosen = page.get_by_role("group", name="Chosen runs")
    for link in ("Aggregate", "Compare runs"):
        chosen.get_by_role("link", name=link, exact=True).click()
        page.wait_for_url("**/*?ids=*")
        page.go_back()
        expect(chosen).to_contain_text("2 chosen")
        for slug in slugs:
            expect(page.locator(f"#runs input[data-slug='{slug}']")).to_be_checked()


def test_a_reload_attaches_again_and_a_second_tab_sees_the_same_run(app, page, context):
    slug = app.services.start_run(script(ENDLESS))
    page.goto(f"{app.url}/run?id={slug}")
    expect(steps.generated(page, "Full cache")).to_contain_text("w1")
    reload_often(page)
    steps.expect_state(page, "running")
    expect(steps.generated(page, "Full cache")).not_to_have_text("")
    before = steps.generated(page, "Full cache").inner_text()
    with context.new_page() as second:
        second.goto(f"{app.url}/r/{slug}")
        assert second.url == f"{app.url}/run?id={slug}"
        steps.expect_state(second, "running")
        expect(steps.generated(second, "Full cache")).to_contain_text(before)
        expect(steps.generated(page, "Full cache")).not_to_have_text(before)
        second.get_by_role("button", name="Cancel", exact=True).click()
        steps.expect_state(page, "cancelled")
        steps.expect_state(second, "cancelled")
    expect(page.locator("#status")).to_contain_text("Cancelled on request")
    assert steps.generated(page, "Full cache").inner_text()
