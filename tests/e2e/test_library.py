"""The library in a real browser: a run is opened, taken along, deleted and brought back."""

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.steps import PHONE
from tests.factories.app import request, store_run
from tests.factories.runs import done_result


@pytest.fixture
def page(context) -> Page:
    """The visitor's, as wide as a phone."""
    (page,) = context.pages
    page.set_viewport_size(PHONE)
    return page


def test_a_run_is_listed_opened_exported_and_deleted(page, app, faults):
    faults.expect("404")
    question = "Which run is to go?"
    slug = store_run(app.services, request(question=question), done_result())
    page.goto(f"{app.url}/runs")
    row = page.locator("#runs tbody tr", has_text=question)
    expect(row).to_contain_text("2 cut")
    row.get_by_role("link").first.click()
    page.wait_for_url(f"**/run?id={slug}")
    expect(page.locator("#run-title")).to_contain_text(question)
    page.get_by_role("tab", name="More").click()
    page.get_by_role("button", name="Receipts and provenance").press("Enter")
    expect(page.locator("#facts")).to_contain_text("sha256")

    page.get_by_role("link", name="Runs", exact=True).first.click()
    row.get_by_role("checkbox").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    assert download.value.suggested_filename == f"ckv-{slug}.zip"
    expect(page.locator("#runs")).to_contain_text("with prompts and notes")
    row.locator("summary").click()
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row).to_have_count(1)
    row.locator("summary").click()
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    expect(page.locator("#runs")).to_contain_text("1 run deleted")
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.get_by_role("main")).to_contain_text("There is no run of this name")
