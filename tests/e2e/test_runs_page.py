"""The list of runs: open, delete and undo; a run made again."""

from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.e2e.app_runner import App


def test_a_run_is_listed_opened_and_deleted(page: Page, app: App):
    question = "Which run is to go?"
    steps.fill(page, question=question)
    steps.run(page)
    slug = steps.wait_for_slug(page)
    steps.expect_state(page, "done")

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


def test_a_reproduced_run_has_the_same_tokens_and_kept_sets(page: Page):
    steps.fill(page)
    steps.run(page)
    slug = steps.wait_for_slug(page)
    steps.expect_state(page, "done")
    page.goto(page.url)
    lineage = page.locator("#lineage")
    lineage.get_by_role("button", name="Reproduce").click()
    page.wait_for_url(lambda url: "/run?id=" in url and slug not in url)
    steps.expect_state(page, "done")
    expect(lineage).to_contain_text("This is a rerun of")
    lineage.get_by_role("link", name="what differs").click()
    found = page.locator("#differences")
    expect(found).to_contain_text("None: these runs were asked the same")
    for label in ("Full cache", "SnapKV"):
        expect(found.locator("summary", has_text=label)).to_contain_text("equal")
    expect(found).to_contain_text("B against A: generated tokens equal, one by one.")
    expect(found).to_contain_text("Kept sets: equal, entry by entry.")
