"""Sweeps and the ablation in a browser, on the real default model."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.e2e.app_runner import App

BUDGETS, ALPHAS = "40, 64", "0.25, 0.5"
POINTS = 2 + 2 * 2


@pytest.fixture
def sweep_page(context, app: App) -> Page:
    """The Sweep page, filled in for a small sweep."""
    (page,) = context.pages
    page.goto(f"{app.url}/sweep")
    page.locator("#context-bar [data-ready]").wait_for()
    page.locator("#context textarea").fill(steps.TEXT)
    page.locator("#question textarea, #question input").first.fill(steps.QUESTION)
    steps.tick(page, "#methods", ("SnapKV", "SnapKV + CriticalKV, as printed"))
    page.locator("#budgets input, #budgets textarea").first.fill(BUDGETS)
    page.locator("#alphas input, #alphas textarea").first.fill(ALPHAS)
    return page


def see_chart(page: Page, area: str, name: str) -> None:
    """Scroll to a chart and wait until it is drawn."""
    panel = page.locator(f'{area} [data-chart="{name}"]')
    panel.scroll_into_view_if_needed()
    expect(panel.locator(".main-svg").first).to_be_visible()


def test_a_sweep_runs_is_saved_and_opens_again_by_its_link(sweep_page: Page, app: App):
    page = sweep_page
    steps.run(page)
    slug = steps.wait_for_slug(page)
    steps.expect_state(page, "done")
    rows = page.locator("#sweep-points tbody tr")
    expect(rows).to_have_count(POINTS)
    for key in ("head", "final", "kl"):
        see_chart(page, "#sweep-curves", f"sweep-{key}")
    # The table follows the status bar: generated text adds a column to it.
    expect(page.locator("#sweep-points thead")).to_contain_text("Agreement")
    points = [row.inner_text() for row in rows.all()]
    page.goto(f"{app.url}/r/{slug}")
    steps.expect_state(page, "done")
    expect(rows).to_have_count(POINTS)
    expect(rows).to_have_text(points, use_inner_text=True)
    see_chart(page, "#sweep-curves", "sweep-final")
    see_chart(page, "#sweep-alpha-charts", "alpha-heads")
    expect(page.locator("#sweep-savings tbody tr")).to_have_count(2 * 2)


def test_the_ablation_adds_its_runs_and_is_drawn(page: Page):
    steps.fill(page, variants=("Full cache",), budget="72", new_tokens=2)
    page.get_by_role("button", name="More variants").click()
    page.get_by_role("button", name="Add the ablation").click()
    lines = page.locator("#more-variants textarea")
    expect(lines).to_have_value(re.compile("preset=kvpress"))
    added = [line for line in lines.input_value().splitlines() if line]
    expect(page.locator("#variants-line")).to_contain_text(f"{len(added) + 1} variants")
    steps.run(page)
    steps.expect_state(page, "done")
    expect(page.locator("#summary tbody tr")).to_have_count(len(added) + 1)
    see_chart(page, "#charts", "ladder")
    ablation = page.locator('#charts [data-chart="ladder"] .js-plotly-plot')
    assert ablation.evaluate("node => node.calcdata[0].length") == len(added)
