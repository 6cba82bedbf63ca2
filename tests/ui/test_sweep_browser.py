"""The Sweep and the Aggregate page in a real browser, on made-up sweeps."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.ui.page_fakes import SLUG, FakeServices
from tests.ui.sweep_fakes import sweep_result, sweep_snapshot
from ui.pages.aggregate import AggregatePage
from ui.pages.sweep import SweepPage
from ui.settings import Settings
from ui.theme import ASSETS, CSS_PATHS, build_theme

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
IDS = [f"runabc{at}" for at in range(5)]


def services() -> FakeServices:
    runs = []
    for at, slug in enumerate(IDS):
        result = sweep_result(better=0.4 + 0.05 * at)
        result.prompt = dataclasses.replace(result.prompt, token_ids=tuple(range(at, at + 10)))
        runs.append(sweep_snapshot(slug=slug, result=result))
    return FakeServices(sweep_snapshot(slug=SLUG), *runs)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = Settings.from_environ({})
    known = services()
    with gr.Blocks(analytics_enabled=False) as app:
        SweepPage(known, settings, models=[settings.model], examples=[]).wire(app)
    with app.route("Several runs", "/aggregate") as route:
        AggregatePage(known).wire(route)
    _, url, _ = app.launch(
        prevent_thread_lock=True,
        quiet=True,
        theme=build_theme(),
        css_paths=[*CSS_PATHS, ASSETS / "pages.css", ASSETS / "sweep.css"],
        footer_links=[],
        ssr_mode=False,
        run_history=False,
    )
    yield url
    app.close()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        page = browser.new_page(viewport={"width": 430, "height": 900})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        browser.close()
        assert errors == []


def saved(page: Page, button: str, folder: Path) -> str:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button, exact=True).click()
    path = folder / "file"
    waiting.value.save_as(path)
    return path.read_text("utf-8", errors="replace")


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_a_sweep_runs_and_its_charts_and_tables_can_be_used(page: Page, address, tmp_path):
    page.goto(address)
    page.locator("#context textarea").fill("some words here. " * 40)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#chart-sweep-final .js-plotly-plot")).to_be_visible(timeout=20_000)
    rows = page.locator("#sweep-points tbody tr")
    page.locator("#sweep-points").get_by_role("button", name="Budget").click()
    expect(rows.first).to_contain_text("64")
    page.locator("#sweep-points").get_by_role("button", name="Budget").click()
    expect(rows.first).to_contain_text("512")
    expect(page.locator("#sweep-savings")).to_contain_text("50 % less")
    expect(page.locator("#sweep-gain")).to_contain_text("n = 21 KV heads")
    assert saved(page, "Final hidden L1 as SVG", tmp_path).startswith("<svg")
    lines = saved(page, "Alpha by head as CSV", tmp_path).splitlines()
    assert lines[0] == '"series","x","y","z"'
    assert len(lines) == 1 + 8 * 3
    assert fits(page)


def test_a_costly_sweep_asks_and_keeps_what_was_typed(page: Page, address):
    page.goto(address)
    page.locator("#context textarea").fill("some words here. " * 40)
    page.get_by_label("Generate text").check()
    page.locator("#max-new-tokens input").fill("1024")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#confirm-text")).to_contain_text("run it?")
    page.get_by_role("button", name="Not now").click()
    expect(page.locator("#confirm-text")).to_have_count(0)
    assert page.locator("#context textarea").input_value().startswith("some words")
    assert page.locator("#max-new-tokens input").input_value() == "1024"


def test_runs_open_together_with_intervals(page: Page, address, tmp_path):
    page.goto(f"{address}aggregate?ids={','.join(IDS)}")
    table = page.locator("#aggregate-table")
    expect(table).to_contain_text(" to ", timeout=20_000)
    expect(table).to_contain_text("42 of 42")
    expect(page.locator("#chart-mean-final .js-plotly-plot")).to_be_visible()
    head = saved(page, "Final hidden L1 as CSV", tmp_path).splitlines()[0]
    assert head == '"series","x","y","low","high"'
    assert fits(page)
