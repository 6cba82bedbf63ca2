"""Several budgets in a real browser, on stored sweeps that are made up."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.events import RunResult
from tests.e2e.steps import PHONE
from tests.factories.app import store_run, sweep_snapshot
from tests.factories.runs import sweep_result


@pytest.fixture(scope="module")
def slugs(open_app) -> dict[str, str]:
    """A sweep, and one with oracles."""
    plain, oracles = sweep_result(better=0.5), sweep_result(better=0.45)
    add_oracles(oracles)
    asked = sweep_snapshot().request
    results = {"plain": plain, "oracles": oracles}
    return {name: store_run(open_app.services, asked, each) for name, each in results.items()}


@pytest.fixture(scope="module")
def page(browser) -> Iterator[Page]:
    page = browser.new_page(viewport=PHONE)
    yield page
    page.close()


def saved(page: Page, chart: str, kind: str, folder: Path) -> str:
    """The file of one item of a chart's menu."""
    page.get_by_label(f"Export: {chart}").click()
    with page.expect_download() as waiting:
        page.locator(".ckv-export:visible").get_by_text(kind, exact=True).click()
    path = folder / "file"
    waiting.value.save_as(path)
    return path.read_text("utf-8", errors="replace")


def see(page: Page, chart: str) -> None:
    """Scroll to a chart and wait until it is drawn."""
    panel = page.locator(f'[data-chart="{chart}"]')
    panel.scroll_into_view_if_needed()
    expect(panel.locator(".main-svg").first).to_be_visible()


def add_oracles(result: RunResult) -> None:
    """Half of each point's head L1, so that every curve has oracles of its own."""
    for at, variant in enumerate(result.variants):
        if variant.perturbation is not None:
            arrays = {"oracle_attention_l1": variant.perturbation.head_l1 / 2}
            result.variants[at] = dataclasses.replace(variant, analysis=arrays)


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_the_charts_and_tables_of_a_sweep_can_be_used(page, open_app, slugs, tmp_path):
    page.goto(f"{open_app.url}/run?id={slugs['plain']}")
    see(page, "sweep")
    page.locator('[data-chart="sweep"]').get_by_label("Quantity").select_option("final")
    drawn = saved(page, "Against the budget", "SVG", tmp_path)
    assert drawn.startswith("<svg")
    head = saved(page, "Against the budget", "CSV", tmp_path)
    assert head.startswith('"spec","budget","budget_unit","metric"')
    page.get_by_label("Export: Against the budget").click()
    page.get_by_role("button", name="As a table").click()
    table = page.locator('[data-chart="sweep"] .ckv-chart-table')
    assert table.locator("tbody th").all_inner_texts() == ["64", "128", "256", "512"]
    page.locator('[data-chart="sweep"]').get_by_label("Quantity").select_option("head")
    expect(table.locator("thead")).to_contain_text("SnapKV")
    rows = page.locator("#sweep-points tbody tr")
    for first in ("64", "512"):
        page.locator("#sweep-points").get_by_role("button", name="Budget").click()
        expect(rows.first).to_contain_text(first)
    expect(page.locator("#sweep-savings")).to_contain_text("50 % less")
    expect(page.locator("#sweep-alphas")).to_contain_text("CriticalKV-SnapKV (paper) budget 512")
    see(page, "alpha-heads")
    assert fits(page)


def test_the_oracles_of_a_curve_are_drawn_beside_the_head_l1(page, open_app, slugs):
    page.goto(f"{open_app.url}/run?id={slugs['oracles']}")
    see(page, "sweep")
    panel = page.locator('[data-chart="sweep"]')
    panel.get_by_label("Quantity").select_option("head")
    plot = panel.locator(".ckv-plot")
    expect(plot).not_to_contain_text("Oracle: true attention")
    panel.get_by_label("Oracles with the head budgets of").select_option(index=2)
    expect(plot).to_contain_text("Oracle: true attention")
    page.locator("#sweep-points").get_by_role("button", name="more columns").click()
    expect(page.locator("#sweep-points")).to_contain_text("Oracle: true attention")
    assert fits(page)
