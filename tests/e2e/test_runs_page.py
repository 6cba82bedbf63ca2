"""The list of runs: open, delete and undo."""

from playwright.sync_api import expect

from tests.factories.app import request, store_run
from tests.factories.runs import done_result


def test_a_run_is_listed_opened_and_deleted(page, app):
    question = "Which run is to go?"
    slug = store_run(app.services, request(question=question), done_result())
    page.get_by_role("link", name="Runs", exact=True).click()
    row = page.locator("#runs tbody tr", has_text=question)
    expect(row).to_contain_text("done")
    row.get_by_role("link").first.click()
    page.wait_for_url(f"**/run?id={slug}")
    expect(page.locator("#run-title")).to_contain_text(question)
    page.get_by_role("button", name="What was asked").click()
    expect(page.locator("#facts")).to_contain_text("sha256")

    page.goto(f"{app.url}/runs")
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    expect(page.locator("#runs")).to_contain_text("1 run deleted")
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.get_by_role("main")).to_contain_text("There is no run of this name")
