"""Journeys on the real default model; in one file, so that one app and one model serve them all."""

import ast
import base64
import json
import re
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest
from playwright.sync_api import Locator, expect

from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.steps import silent
from tests.doc_blocks import blocks, run_as_shown
from tests.e2e import steps
from tests.e2e.app_runner import ROOT, START_LIMIT_S, App, start

PRINTED = "CriticalKV-SnapKV (paper)"


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Iterator[App]:
    """`python app.py` with an empty data folder, once it has made its example run."""
    home = tmp_path_factory.mktemp("home")
    models = prepare_default_model(silent).parent
    (home / "models").symlink_to(models, target_is_directory=True)
    app = start([str(ROOT / "app.py")], home, CKV_EXAMPLE="1", CKV_MCP="1")
    until = time.monotonic() + 2 * START_LIMIT_S
    while not httpx.get(f"{app.url}/example").json()["done"]:
        assert time.monotonic() < until, "the example run does not come"
        time.sleep(0.5)
    yield app
    app.stop()


@pytest.fixture
def wait_for_model(page) -> None:
    """Until the default model is loaded, which the page does not need to be usable."""
    expect(page.locator("#model-line")).to_contain_text("Ready", timeout=120_000)


def test_a_newcomer_sees_a_verdict_and_kept_maps_without_typing(browser, app):
    limit_ms = 15_000  # of the page's first load, in a browser that has nothing of it
    with browser.new_context(viewport=steps.DESK) as newcomer:
        page = newcomer.new_page()
        began = time.monotonic()
        page.goto(app.url)
        card = page.locator("#example")
        left = limit_ms - 1000 * (time.monotonic() - began)
        expect(card).to_contain_text("1 of 4 methods", timeout=left)
        expect(card.locator("canvas[data-drawn]")).to_have_count(4)
        assert 1000 * (time.monotonic() - began) < limit_ms
        assert page.evaluate("document.documentElement.scrollHeight") <= steps.DESK["height"]
        expect(card.locator(".ckv-wrote")).to_have_text(["5829.", "582.", "589.", "589."])
        expect(card.locator("mark")).to_have_text(["582.", "589.", "589."])
        page.get_by_role("button", name="Needle in a report").click()
        expect(page.locator(f"#variants {steps.CHIP}")).to_have_count(5)
        assert page.evaluate("document.documentElement.scrollHeight") <= steps.DESK["height"]
        card.get_by_role("link", name="Open result").click()
        steps.expect_state(page, "done")
        expect(page.locator("#answers")).to_contain_text("KVzip")


def test_an_example_runs_with_the_default_variants(page, app, wait_for_model):
    page.get_by_role("button", name="Support chat").click()
    expect(page.locator("#context-bar")).to_contain_text(re.compile(r"[\d,]+ of 8,192 tokens"))
    expect(page.locator("#variants-line")).to_contain_text(re.compile(r"5 methods, about \d+ s "))
    steps.set_new_tokens(page, 24)
    steps.run_to_its_end(page)
    for line in ("All figures", "Perturbation"):
        page.get_by_role("button", name=line).press("Enter")
    table = page.locator("#summary tbody")
    expect(table.locator("tr")).to_have_count(6)
    row = table.locator("tr", has_text=PRINTED)
    expect(row).to_contain_text("13,140 / 13,140")
    share = re.search(r"(\d+) % of 270", row.inner_text())
    assert share
    assert int(share[1]) >= 80
    expect(table.locator("tr").first).to_contain_text("answered")
    expect(steps.generated(page, "Full cache")).to_contain_text("12 euros")
    steps.see_everything(page)
    expect(page.locator("#kept canvas").first).to_be_visible()
    for chart in ("layers", "final", "heads", "budgets"):
        drawn = page.locator(f'#charts [data-drawn*="/figure/{chart}?"]')
        expect(drawn.locator(".js-plotly-plot")).to_be_visible()
    heads = page.locator('#charts [data-drawn*="/figure/heads?"]')
    heads.locator("select[name=variant]").select_option(label=PRINTED)
    plot = heads.locator(".js-plotly-plot")
    expect(plot).to_have_attribute("aria-label", re.compile(rf"^{re.escape(PRINTED)}: "))
    # The model has a process of its own; the app's loads no torch for a run.
    loaded = [
        any("libtorch" in each.path for each in psutil.Process(pid).memory_maps())
        for pid in (app.process.pid, *app.workers())
    ]
    assert loaded[0] is False
    assert any(loaded)


def test_one_word_of_250_000_letters_is_refused_with_a_number(page, wait_for_model):
    steps.fill(page, context="x" * 250_000)
    refusal = page.get_by_text(re.compile(r"[\d,]+ over the model's limit of 8,192"))
    expect(refusal.filter(visible=True).first).to_be_visible(timeout=steps.RUN_LIMIT_MS)
    page.get_by_role("button", name=re.compile(r"^Use the first [\d,]+ tokens$")).click()
    expect(page.locator("#context-bar")).to_contain_text(re.compile(r"8,1\d\d of 8,192 tokens"))
    expect(page.locator("#wrong-context")).to_have_count(0)
    assert page.evaluate("document.querySelector('#context textarea').value.length") < 40_000


ACTIVATE = ("bash", f"source '{ROOT}/.venv/bin/activate'\n")
TOKEN = "ckv_TOKEN"  # in the examples that log in


def examples(url: str, *, with_logins: bool) -> list[tuple[str, str]]:
    """The blocks of the page for programs, for the app at this address."""
    found = blocks(ROOT / "docs" / "how-to" / "programs.md")
    return [
        (language, text.replace("http://127.0.0.1:7860", url))
        for language, text in found
        if (TOKEN in text) == with_logins
    ]


def test_the_examples_for_programs_run_and_print_what_their_page_shows(app, tmp_path):
    printed = run_as_shown([ACTIVATE, *examples(app.url, with_logins=False)], tmp_path, {})
    assert re.search(r"^cancelled Cancelled on request\. \[", printed, re.MULTILINE)
    assert '"state":"done"' in printed.replace(" ", "")
    assert json.loads((tmp_path / "result.json").read_bytes())["variants"]
    assert (tmp_path / "bundle.zip").read_bytes()[:2] == b"PK"
    tools, listed = printed.splitlines()[-2:]  # by MCP
    assert ast.literal_eval(tools)[-2:] == ["list_methods", "list_models"]
    assert json.loads(listed)["total"] == 3


def test_the_examples_that_log_in_run_on_an_app_set_up_as_deploy_says(tmp_path):
    (tmp_path / "models").symlink_to(prepare_default_model(silent).parent)
    users = "echo a-long-password | ckv users line ann > users\nckv tokens create ann\n"
    printed = run_as_shown([ACTIVATE, ("bash", users)], tmp_path, {"CKV_HOME": str(tmp_path)})
    team = start([str(ROOT / "app.py")], tmp_path, CKV_AUTH=f"@{tmp_path / 'users'}")
    try:
        assert httpx.get(f"{team.url}/api/runs").status_code == 401
        found = examples(team.url, with_logins=True)
        assert [language for language, _ in found] == ["python", "bash"]
        begin = [ACTIVATE, ("python", "from gradio_client import Client\n")]
        token = re.findall(r"ckv_[\w-]+", printed)[-1]
        used = [(language, text.replace(TOKEN, token)) for language, text in found]
        assert '"runs":' in run_as_shown([*begin, *used], tmp_path, {})
    finally:
        team.stop()


# --- a stored run at another budget, looked at and saved


@pytest.fixture(scope="module")
def slug(visitor, app) -> str:
    """A run that is over."""
    page = visitor.new_page()
    steps.open_form(page, app.url)
    steps.fill(page)
    return steps.run_to_its_end(page)


DRAWN = "map => map.toDataURL()"


def moved_budget(slider: Locator) -> str:
    return json.dumps({"budget": f"{slider.input_value()}%"}, separators=(",", ":"))


def test_a_dragged_budget_moves_maps_charts_figures_and_answers(context, app, slug):
    (page,) = context.pages
    page.goto(f"{app.url}/run?id={slug}")
    row, slider = page.locator(".ckv-live"), page.get_by_role("slider", name="Budget")
    kept, figures = page.locator("#kept canvas").first, page.locator("#summary tbody")
    page.get_by_role("button", name="Perturbation").click()
    kept.scroll_into_view_if_needed()
    expect(kept).to_be_visible()
    drawn, measured = kept.evaluate(DRAWN), figures.text_content()
    chart = page.locator("#charts [data-chart=layers]")
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-drawn", re.compile("^/data/"))
    expect(slider).to_be_in_viewport()  # it floats beside what follows it
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2, steps=4)
    wanted = moved_budget(slider)
    expect(row).to_have_attribute("data-shown", wanted, timeout=steps.RUN_LIMIT_MS)
    expect(row).to_contain_text(f"Preview at {slider.input_value()} %, not saved")
    assert kept.evaluate(DRAWN) != drawn
    expect(chart).to_have_attribute("data-drawn", re.compile("^preview:"))
    assert row.get_attribute("data-answers") is None
    page.mouse.up()
    expect(row).to_have_attribute("data-answers", wanted, timeout=steps.RUN_LIMIT_MS)
    expect(page.locator("body")).to_have_attribute("data-preview", "whole")
    expect(figures).not_to_have_text(measured)
    expect(page.locator("#answers tbody")).to_contain_text(f"{slider.input_value()} %")
    row.get_by_role("button", name="Back to the run").click()
    expect(figures).to_have_text(measured)
    expect(chart).not_to_have_attribute("data-drawn", re.compile("^preview:"))
    expect(row).to_contain_text("Drag to preview")


def test_a_preview_is_saved_as_it_was_shown(context, app, slug):
    (page,) = context.pages
    page.goto(f"{app.url}/run?id={slug}")
    row, slider = page.locator(".ckv-live"), page.get_by_role("slider", name="Budget")
    stored = page.request.get(f"{app.url}/data/{slug}/1/retained").body()
    for _ in range(4):  # far enough for other whole tokens
        slider.press("ArrowRight")
    wanted = moved_budget(slider)
    expect(row).to_have_attribute("data-answers", wanted, timeout=steps.RUN_LIMIT_MS)
    preview = {"values": {"budget": f"{slider.input_value()}%"}}
    seen = page.request.post(f"{app.url}/data/{slug}/preview", data=preview).text().splitlines()
    (_, bits), *_ = next(line["kept"] for line in map(json.loads, seen) if "kept" in line)
    row.get_by_role("button", name="Save as run").click()
    page.wait_for_url(lambda url: slug not in url)
    saved = steps.wait_for_slug(page)
    steps.expect_state(page, "done")
    again = page.request.get(f"{app.url}/data/{saved}/1/retained").body()
    assert again == base64.b64decode(bits) != stored
