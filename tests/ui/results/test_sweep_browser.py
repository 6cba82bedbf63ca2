"""Several budgets in a real browser, on stored sweeps that are made up: the grid leads."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.events import RunResult
from ckv_core.records.records import RetainedSet, SampledText
from tests.e2e.steps import PHONE, expect_well_made, open_sections
from tests.factories.app import request, store_run, sweep_snapshot
from tests.factories.runs import done_result, sweep_result


@pytest.fixture(scope="module")
def slugs(open_app) -> dict[str, str]:
    """A sweep, and one that wrote something and has its kept sets."""
    asked = sweep_snapshot().request
    results = {"plain": sweep_result(better=0.5), "written": written_sweep()}
    return {name: store_run(open_app.services, asked, each) for name, each in results.items()}


@pytest.fixture(autouse=True)
def phone(page) -> None:
    page.set_viewport_size(PHONE)


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


def written_sweep() -> RunResult:
    """SnapKV with four settings answers at 512 alone; each point keeps entries of its own."""
    result = sweep_result(generated=True)
    assert result.model
    assert result.prompt
    shape = (result.model.layers, result.model.kv_heads, result.prompt.compressed_tokens)
    for at, variant in enumerate(result.variants):
        is_full = variant.method == "full"
        answers = is_full or variant.params["budget"] == 512
        mask = np.random.default_rng(at).random(shape) < 0.5
        result.variants[at] = dataclasses.replace(
            variant,
            text="The code is 5829." if answers else f"The code is 58{at} or so.",
            stopped="eos",
            answer_found=answers,
            sampled_texts=(SampledText("The code is 5829.", "eos", answers),) * 2,
            retained=None if is_full else RetainedSet.from_mask(mask),
        )
    return result


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def chosen(page: Page) -> list[str]:
    """What each part of the page shows of the chosen cell."""
    pressed = page.locator("#grid .ckv-point[aria-pressed=true]")
    expect(pressed).to_have_count(1)
    words = str(pressed.get_attribute("aria-label"))
    return [words.partition(": ")[0], page.locator("#chosen-cell p").first.inner_text()]


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_the_grid_fits_and_a_cell_chosen_by_keyboard_changes_what_stands_below(
    page, open_app, slugs, width
):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{open_app.url}/run?id={slugs['written']}")
    cells = page.locator("#grid .ckv-point")
    expect(cells).to_have_count(16)
    expect(page.locator("#verdict")).to_contain_text("The smallest budget that")
    assert fits(page)
    boxes = [cell.bounding_box() for cell in cells.all()]
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    first = chosen(page)
    assert "at 512 tokens" in first[0]
    maps, tabs = page.locator("#point-kept"), page.get_by_role("tab")
    if width == 390:
        tabs.nth(1).click()
    maps.scroll_into_view_if_needed()
    expect(maps.locator("[data-variant]").first).to_be_visible()
    shown = maps.locator("[data-variant]").evaluate_all("all => all.map(e => e.dataset.variant)")
    if width == 390:
        tabs.nth(0).click()
    page.locator("#grid .ckv-point[aria-pressed=true]").focus()
    page.keyboard.press("ArrowLeft")
    second = chosen(page)
    assert second[0] == first[0].replace("512", "256")
    assert "at 256 tokens" in second[1]
    assert "variant=" in page.evaluate("location.hash")
    if width == 390:
        tabs.nth(1).click()
    changed = "seen => [...document.querySelectorAll('#point-kept [data-variant]')]"
    changed += ".every((each) => !seen.includes(each.dataset.variant))"
    page.wait_for_function(changed, arg=shown)
    page.reload()
    expect(cells).to_have_count(16)
    assert chosen(page) == second
    page.set_viewport_size(PHONE)


def test_a_result_at_one_budget_leads_to_the_smallest_that_still_answers(page, open_app):
    asked = request(variants=("full", "snapkv:window=8", "adakv"), answer="5829")
    slug = store_run(open_app.services, asked, done_result())
    page.goto(f"{open_app.url}/run?id={slug}")
    find = page.get_by_role("button", name="Find the smallest budget")
    expect(find).to_have_attribute("title", re.compile(r"^13 points on "))
    more = page.get_by_role("link", name="Run on more samples")
    expect(more).to_have_attribute("href", f"/?from={slug}&source=pasted")
    find.click()
    page.wait_for_url(lambda url: f"id={slug}" not in url)
    started = open_app.services.snapshot(page.url.partition("id=")[2][:12])
    assert started.request.budgets == ("5%", "10%", "20%", "30%", "40%", "50%")
    assert started.request.variants == asked.variants
    open_app.services.cancel_run(started.slug)


def test_a_cell_opens_as_a_result_at_its_budget_once(page, open_app, slugs):
    found = []
    for _ in range(2):
        page.goto(f"{open_app.url}/run?id={slugs['written']}")
        page.get_by_role("button", name="Open 512 tokens as a result").click()
        page.wait_for_url(lambda url: slugs["written"] not in url)
        found.append(page.url.partition("id=")[2][:12])
    assert found[0] == found[1]
    started = open_app.services.snapshot(found[0])
    assert (started.request.budgets, started.request.kind) == (("512",), "compare")
    open_app.services.cancel_run(started.slug)


def test_the_charts_and_tables_of_a_sweep_can_be_used(page, open_app, slugs, tmp_path):
    page.goto(f"{open_app.url}/run?id={slugs['plain']}")
    expect(page.locator("#sweep-points tbody tr")).to_have_count(0)  # read when it is opened
    open_sections(page)
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
    box = page.locator("#sweep-points .ckv-scroll")
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert fits(page)


def test_sampled_texts_are_read_when_they_are_opened(page, open_app, slugs):
    page.goto(f"{open_app.url}/run?id={slugs['written']}")
    page.get_by_role("tab", name="More").click()
    rows = page.locator("#sweep-sampled tbody tr")
    expect(rows).to_have_count(0)
    page.get_by_role("button", name="Sampled texts").press("Enter")
    expect(rows).to_have_count(17)
    expect(rows.nth(1)).to_contain_text("The code is 5829.")
    expect(rows.nth(1)).to_contain_text("Times (of 2)")
    expect_well_made(page)
