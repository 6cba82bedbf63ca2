"""The main job in a browser, on the real default model."""

import re

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.e2e.app_runner import App

PRINTED = "SnapKV + CriticalKV, as printed"


@pytest.fixture
def wait_for_model(page: Page) -> None:
    """Until the default model is loaded, which the page does not need to be usable."""
    expect(page.locator("#model-line")).to_contain_text("is ready", timeout=120_000)


def test_an_example_runs_with_the_default_variants(page: Page, app: App, wait_for_model):
    page.get_by_role("button", name="Needle in a report").click()
    expect(page.locator("#context-bar")).to_contain_text(re.compile(r"[\d,]+ of 8,192 tokens"))
    expect(page.locator("#variants-line")).to_contain_text("6 variants: Full cache, StreamingLLM")
    steps.run(page)
    steps.wait_for_slug(page)
    steps.expect_state(page, "done")
    expect(page.get_by_role("button", name=re.compile("^Settings: SmolLM2"))).to_be_visible()
    table = page.locator("#summary tbody")
    expect(table.locator("tr")).to_have_count(6)
    row = table.locator("tr", has_text=PRINTED)
    expect(row).to_contain_text("71,100 / 71,100")
    share = re.search(r"(\d+)% of 270", row.inner_text())
    assert share
    assert int(share[1]) >= 80
    expect(table.locator("tr").first).to_contain_text("yes")
    expect(steps.generated(page, "Full cache")).to_contain_text("5829")
    steps.see_everything(page)
    expect(page.locator("#kept canvas").first).to_be_visible()
    for chart in ("layers", "final", "heads", "budgets"):
        drawn = page.locator(f'#charts [data-drawn*="/figure/{chart}?"]')
        expect(drawn.locator(".js-plotly-plot")).to_be_visible()
    heads = page.locator('#charts [data-drawn*="/figure/heads?"]')
    heads.locator("select[name=variant]").select_option(label=PRINTED)
    expect(heads.locator(".js-plotly-plot")).to_contain_text(PRINTED)
    # The model has a process of its own; the app's loads no torch for a run.
    loaded = [
        any("libtorch" in each.path for each in psutil.Process(pid).memory_maps())
        for pid in (app.process.pid, *app.workers())
    ]
    assert loaded[0] is False
    assert any(loaded)


def test_reload_attaches_again_and_a_second_tab_sees_the_same_run(page: Page, context, app):
    slug = steps.run_endlessly(page)
    page.reload()
    steps.expect_state(page, "running")
    expect(steps.generated(page, "Full cache")).not_to_have_text("")
    before = steps.generated(page, "Full cache").inner_text()
    second = context.new_page()
    second.goto(f"{app.url}/r/{slug}")
    assert second.url == f"{app.url}/run?id={slug}"
    steps.expect_state(second, "running")
    expect(steps.generated(second, "Full cache")).to_contain_text(before)
    expect(steps.generated(page, "Full cache")).not_to_have_text(before)
    steps.cancel(second)
    steps.expect_state(page, "cancelled")
    expect(page.locator("#status")).to_contain_text("Cancelled on request")
    assert steps.generated(page, "Full cache").inner_text()


def test_one_word_of_a_megabyte_is_refused_with_a_number(page: Page, wait_for_model):
    steps.fill(page, context="x" * 1_000_000)
    steps.run(page)
    sentence = re.compile(r"[\d,]+ over the model's limit of 8,192")
    said = page.locator("#notice, #status").filter(has_text=sentence)
    expect(said.first).to_be_visible(timeout=steps.RUN_LIMIT_MS)
    assert page.evaluate("document.querySelector('#context textarea').value.length") == 1_000_000


def test_a_lone_surrogate_is_refused(page: Page):
    steps.fill(page)
    put = """() => {
      const box = document.querySelector("#context textarea");
      box.value = "good \\ud800 text";
      box.dispatchEvent(new Event("input", {bubbles: true}));
    }"""
    page.evaluate(put)
    steps.run(page)
    expect(page.locator("#notice")).to_contain_text("lone surrogate) at position 5")
