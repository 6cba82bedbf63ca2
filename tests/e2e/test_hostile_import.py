"""Hostile files given to the Runs page: one sentence each, nothing stored, the app goes on."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from storage.database import default_url, open_database
from tests.e2e.test_xss import HOSTILE, PAYLOADS, assert_nothing_ran
from tests.storage.test_bundle import exported, made, rewritten, run_text, sealed
from tests.ui.served_app import Served, served
from ui.limits import Limits

BODY_MIB = 2
Files = dict[str, tuple[bytes, str]]


def bundle_of_one(folder: Path) -> tuple[str, bytes]:
    """A run's slug and a bundle of it, made elsewhere."""
    with closing(open_database(default_url(folder))) as database:
        slug = made(database)
        return slug, exported(database, slug)


def changed(slug: str, text: bytes, **values: Any) -> bytes:
    """A bundle with right checksums of a run with other values."""
    return sealed(slug, json.dumps(json.loads(text) | values).encode())


def hostile_files(folder: Path) -> Files:
    """By name: the file, and what the page must say of it; all others are tests/storage's."""
    slug, data = bundle_of_one(folder)
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
        "markup as a state": (changed(slug, run_text(data), state=PAYLOADS[0]), "wrong at state"),
        "over the limit": (b"PK" + bytes(BODY_MIB * 2**20), f"takes {BODY_MIB} MiB at a time"),
    }


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = Limits(body_mib=BODY_MIB)
    with served(tmp_path_factory.mktemp("app"), with_logins=False, limits=limits) as app:
        yield app


@pytest.fixture
def page(browser: Browser, app: Served) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 430, "height": 900})
    page = context.new_page()
    page.goto(f"{app.url}/runs")
    expect(page.locator("#runs")).to_contain_text("No runs yet")
    yield page
    context.close()


def give(page: Page, name: str, data: bytes) -> None:
    """Choose a file on the page."""
    page.locator("#runs .ckv-files [role=status]").evaluate("line => { line.textContent = '' }")
    page.locator("#runs input[data-import]").set_input_files(
        {"name": name, "mimeType": "application/zip", "buffer": data}
    )


def test_a_hostile_file_is_one_sentence_and_stores_nothing(
    page: Page, app: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told = page.locator("#runs .ckv-files [role=status]")
    for name, (data, sentence) in hostile_files(tmp_path_factory.mktemp("there")).items():
        give(page, f"{name}.zip", data)
        expect(told, name).to_contain_text(sentence)
        expect(told, name).to_have_attribute("data-tone", "error")
        assert app.services.count_by_state() == {}, name
    with app.client() as client:
        assert client.get("/readyz").status_code == 200
    expect(page.get_by_role("button", name="Import runs")).to_be_enabled()
    assert_nothing_ran(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 430
    assert list(tmp_path_factory.getbasetemp().rglob("*outside-it*")) == []


def test_markup_in_a_bundles_texts_is_shown_as_text_after_all_that(
    page: Page, app: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The app takes what is right after all that was wrong; markup in a title is only a text."""
    slug, data = bundle_of_one(tmp_path_factory.mktemp("there"))
    title = HOSTILE[:300]
    give(page, f"{PAYLOADS[0]}.zip", changed(slug, run_text(data), title=title, note=HOSTILE))
    expect(page.locator("#runs .ckv-files")).to_contain_text("Imported 1 of 1 run.")
    row = page.locator("#runs tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("a").first).to_have_text(title)
    expect(row).to_contain_text(PAYLOADS[-1])
    assert_nothing_ran(page)
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.locator("#run-title")).to_contain_text(PAYLOADS[0])
    assert_nothing_ran(page)
