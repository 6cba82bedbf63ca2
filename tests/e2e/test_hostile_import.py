"""Hostile files given to the Runs page: one sentence each, nothing stored, the app goes on."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from storage.database import default_url, open_database
from tests.e2e.test_xss import HOSTILE, PAYLOADS, assert_nothing_ran
from tests.storage.bundles import exported, made, resealed, rewritten, run_values, sealed
from ui.limits import Limits

BODY_MIB = Limits().body_mib
Files = dict[str, tuple[bytes, str]]


def bundle_of_one(folder: Path) -> tuple[str, bytes]:
    """A run's slug and a bundle of it, made elsewhere."""
    with closing(open_database(default_url(folder))) as database:
        slug = made(database)
        return slug, exported(database, slug)


def hostile_files(folder: Path) -> Files:
    """By name: the file, and what the page must say of it; all others are tests/storage's."""
    _, data = bundle_of_one(folder)
    of_run = run_values(data)
    return {
        "bomb": (
            sealed("a" * 12, b" " * 20_000_000),
            "it is compressed too much to be a bundle",
        ),
        "path upwards": (
            rewritten(data, {}, [("../../outside-it", b"x")]),
            "its files are not those that its manifest lists",
        ),
        "page not zip": (HOSTILE.encode(), "it is neither a bundle nor a result JSON"),
        "markup as a state": (resealed(of_run | {"state": PAYLOADS[0]}), "wrong at state"),
        "over the limit": (b"PK" + bytes(BODY_MIB * 2**20), f"takes {BODY_MIB} MiB at a time"),
    }


@pytest.fixture
def page(browser, app) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 430, "height": 900})
    page = context.new_page()
    page.goto(f"{app.url}/runs")
    expect(page.locator("#runs")).to_contain_text("No runs yet")
    yield page
    context.close()


def give(page: Page, path: Path, data: bytes) -> None:
    """Choose a file on the page."""
    path.write_bytes(data)
    page.locator("#runs .ckv-files [role=status]").evaluate("line => { line.textContent = '' }")
    page.locator("#runs input[data-import]").set_input_files(path)


def test_a_hostile_file_is_one_sentence_and_stores_nothing(page, app, tmp_path_factory):
    told = page.locator("#runs .ckv-files [role=status]")
    folder = tmp_path_factory.mktemp("there")
    for name, (data, sentence) in hostile_files(folder).items():
        give(page, folder / f"{name}.zip", data)
        expect(told, name).to_contain_text(sentence)
        expect(told, name).to_have_attribute("data-tone", "error")
        assert app.services.count_by_state() == {}, name
    with app.client() as client:
        assert client.get("/readyz").status_code == 200
    expect(page.get_by_role("button", name="Import runs")).to_be_enabled()
    assert_nothing_ran(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 430
    assert list(tmp_path_factory.getbasetemp().rglob("*outside-it*")) == []


def test_markup_in_a_bundles_texts_is_shown_as_text_after_all_that(page, app, tmp_path_factory):
    """The app takes what is right after all that was wrong; markup in a title is only a text."""
    folder = tmp_path_factory.mktemp("there")
    slug, data = bundle_of_one(folder)
    title = HOSTILE[:300]
    named = resealed(run_values(data) | {"title": title, "note": HOSTILE})
    give(page, folder / f"{PAYLOADS[0]}.zip", named)
    expect(page.locator("#runs .ckv-files")).to_contain_text("Imported 1 of 1 run.")
    row = page.locator("#runs tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("a").first).to_have_text(title)
    expect(row).to_contain_text(PAYLOADS[-1])
    assert_nothing_ran(page)
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.locator("#run-title")).to_contain_text(PAYLOADS[0])
    assert_nothing_ran(page)
