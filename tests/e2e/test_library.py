"""The library in a real browser: runs deleted, compared, taken along as a bundle, brought back."""

import json

import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.codec import to_json
from tests.e2e.steps import PHONE
from tests.factories.app import empty, request, store_run
from tests.factories.runs import done_result


@pytest.fixture
def page(context) -> Page:
    """The visitor's, as wide as a phone."""
    (page,) = context.pages
    page.set_viewport_size(PHONE)
    return page


@pytest.fixture
def slugs(app) -> dict[str, str]:
    """Two runs; stored for each test, since one deletes all."""
    asked = {"first": request(), "other": request(question="other?", budgets=("64",))}
    return {name: store_run(app.services, each, done_result()) for name, each in asked.items()}


def test_a_run_is_listed_opened_and_deleted(page, app, faults):
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


def test_chosen_runs_are_exported_and_come_back_after_their_loss(app, slugs, page, tmp_path):
    app.services.library.annotate(slugs["first"], "Kept title", "kept note")
    page.goto(f"{app.url}/runs")
    row = page.locator("#runs tbody tr", has_text="Kept title")
    row.get_by_role("checkbox").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    bundle = tmp_path / download.value.suggested_filename
    assert bundle.name == f"ckv-{slugs['first']}.zip"
    download.value.save_as(bundle)
    expect(page.locator("#runs")).to_contain_text("with prompts and notes")

    empty(app.services)
    page.goto(f"{app.url}/runs")
    expect(page.locator("#runs")).to_contain_text("No runs yet")
    choose = page.locator("#runs input[data-import]")
    choose.set_input_files(bundle)
    expect(page.locator("#runs")).to_contain_text("Imported 1 of 1 run.")
    expect(row).to_contain_text("kept note")
    choose.set_input_files(bundle)
    expect(page.locator("#runs")).to_contain_text(f"already here: {slugs['first']}.")

    result = tmp_path / "result.json"
    result.write_text(json.dumps(to_json(done_result())))
    choose.set_input_files(result)
    expect(page.locator("#runs tbody tr input[data-slug]")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 430
