"""Kept positions of other code: opened in the form, run, and shown as one more column."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.e2e.app_runner import App

LABEL = "Mine <b>of old</b>"


def finished_run(page: Page) -> str:
    steps.run(page)
    slug = steps.wait_for_slug(page)
    steps.expect_state(page, "done")
    return slug


def open_more(page: Page) -> None:
    page.get_by_role("button", name="More variants").click()
    page.locator("#own-bar [data-ready]").wait_for()


def test_a_result_json_comes_back_as_one_more_column(page: Page, app: App, tmp_path: Path):
    steps.fill(page)
    slug = finished_run(page)
    result = page.request.get(f"{app.url}/data/{slug}/result.json").json()
    result["variants"][1]["label"] = LABEL
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(result), "utf-8")
    (tmp_path / "wrong.json").write_text('{"schema": 1', "utf-8")

    page.goto(app.url)
    steps.fill(page)
    open_more(page)
    picker = page.locator("#own-bar input[type=file]")
    picker.set_input_files(tmp_path / "wrong.json")
    expect(page.locator("#own-bar")).to_contain_text("wrong.json is not valid JSON")
    picker.set_input_files(path)
    line = page.locator("#variants-line")
    expect(line).to_contain_text(f"3 variants: Full cache, SnapKV, {LABEL}.")
    slug = finished_run(page)
    expect(steps.generated(page, LABEL)).to_have_text(steps.generated(page, "SnapKV").inner_text())
    expect(page.get_by_text("own:label=Mine").first).to_be_visible()

    page.goto(f"{app.url}/?from={slug}")
    expect(page.locator("#variants-line")).to_contain_text(LABEL)
    open_more(page)
    expect(page.locator("#own textarea")).to_have_value(re.compile(LABEL))


def test_wrong_positions_are_named_and_stay_as_typed(page: Page):
    steps.fill(page)
    open_more(page)
    box = page.get_by_label("External selections")
    typed = '{"schema": 1, "variants": [{"label": "A", "retained": [3, 3]}]}'
    box.fill(typed)
    box.blur()
    expect(page.locator("#variants-line")).to_contain_text("position 3 is expected once")
    steps.run(page)
    expect(page.locator("#notice [role=alert]")).to_contain_text("variants[0].retained")
    assert box.input_value() == typed
