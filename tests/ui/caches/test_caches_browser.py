"""The page Caches and the section that keeps one, in a real browser: on a phone and in dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.steps import PHONE, expect_well_made_everywhere, see_everything
from tests.factories.app import store_run
from tests.factories.kept import kept_bytes
from tests.factories.runs import done_result
from tests.ui.caches.test_caches import asked


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))


@pytest.fixture
def page(browser) -> Iterator[Page]:
    page = browser.new_page(viewport=PHONE, color_scheme="light")
    yield page
    page.close()


def field(page: Page, name: str):
    return page.locator(f"#{name} :is(textarea, input)").first


def test_a_runs_cache_is_kept_asked_and_deleted(page, open_app):
    run = asked("steps 3", variants=("full", "snapkv:budget=48", "snapkv+critical:budget=48"))
    slug = store_run(open_app.services, run, done_result())
    page.goto(f"{open_app.url}/run?id={slug}&__theme=light")
    page.get_by_role("tab", name="More").click()
    page.get_by_role("button", name="Keep a cache").press("Enter")
    see_everything(page)
    expect_well_made_everywhere(page)
    expect(field(page, "keep-variant")).to_have_value("full")  # it alone kept the answer
    field(page, "keep-variant").fill("snapkv+critical:budget=48")
    field(page, "keep-variant").press("Enter")
    page.get_by_role("button", name="Keep this cache").click()
    expect(page.locator("#keep-notice")).to_contain_text("A cache's name has up to 64")
    field(page, "keep-name").fill("report")
    page.get_by_role("button", name="Keep this cache").click()
    expect(page.locator("#keep-notice")).to_contain_text("report is kept.")
    page.get_by_role("link", name="Ask it on the page Caches").click()
    expect(page.locator("#caches tbody tr")).to_have_count(1)
    expect(page.locator("#caches tbody")).to_contain_text("snapkv+critical:budget=48")
    expect(field(page, "cache")).to_have_value("report")
    for question in ("steps 2", "steps 4"):
        field(page, "cache-question").fill(question)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#cache-answers section").first).to_contain_text(question)
        expect(page.locator("#cache-answers section").first).to_contain_text("w1")
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    expect(page.locator("#cache-answers section")).to_have_count(2)
    page.get_by_role("button", name="Delete or import").click()
    see_everything(page)
    expect_well_made_everywhere(page)
    page.get_by_role("button", name="Delete…").click()
    expect(page.locator("#confirm-text")).to_contain_text("Delete report for good?")
    page.get_by_role("button", name="Delete it").click()
    expect(page.locator("#caches")).to_contain_text("No cache is kept yet")


def test_an_answer_is_stopped_and_a_file_comes_in_and_goes_out(page, open_app, tmp_path, faults):
    faults.expect("400")
    page.goto(f"{open_app.url}/caches")
    expect(page.locator("#caches")).to_contain_text("No cache is kept yet")
    source = tmp_path / "brought.safetensors"
    brought = kept_bytes()  # safetensors orders what it says of a file anew each time
    source.write_bytes(brought)
    page.get_by_role("button", name="Delete or import").click()
    page.locator("#cache-file input[type=file]").set_input_files(source)
    expect(page.locator("#cache-file")).to_contain_text("brought is kept.")
    expect(page.locator("#caches tbody tr")).to_have_count(1)
    with page.expect_download() as found:
        page.get_by_role("link", name="Download").click()
    assert Path(found.value.path()).read_bytes() == brought
    field(page, "cache-question").fill("steps 1000000")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#cache-answers section")).to_contain_text("w1")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("#cache-answers section")).to_contain_text("Cancelled.")
    source.write_bytes(b"nothing")
    page.locator("#cache-file input[type=file]").set_input_files(source)
    expect(page.locator("#cache-file")).to_contain_text("kept already")
