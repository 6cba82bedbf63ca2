"""The form in a real browser: Run within reach, words that explain themselves."""

import re
from collections.abc import Callable

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.run_request import RunRequest
from tests.e2e import steps
from tests.e2e.steps import CHIP, expect_well_made, expect_well_made_everywhere, open_advanced
from tests.factories.app import request, store_run
from tests.factories.runs import done_result
from tests.ui.served_app import Served
from ui.compare.offers import FIRST_CHIPS

pytestmark = pytest.mark.e2e

DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def app(open_app) -> Served:
    return open_app


@pytest.fixture
def catch(app, monkeypatch) -> Callable[..., tuple[str, list[RunRequest]]]:
    """Stores a run that every click on Run then shows: its slug, and what was asked for."""

    def catch(**asked: object) -> tuple[str, list[RunRequest]]:
        slug, started = store_run(app.services, request(**asked), done_result()), []
        take = started.append
        monkeypatch.setattr(app.services, "start_run", lambda run, *_: take(run) or slug)
        return slug, started

    return catch


def show(page: Page, app: Served, size: dict[str, int] = DESK) -> None:
    page.set_viewport_size(size)
    page.goto(app.url)
    page.locator("#context-bar [data-ready]").wait_for(state="attached")


def test_no_handler_keeps_state_in_the_browser_session(app):
    assert gr.State not in {type(component) for component in app.blocks.blocks.values()}
    targets = [target for fn in app.blocks.fns.values() for target in fn.targets]
    assert not [target for target in targets if target[1] == "unload"]


# Controls of the form that a reader sees, as the keyboard and the mouse reach them.
CONTROLS = """() => [...document.querySelectorAll(
    "#ask :is(a, button, input, select, textarea, summary)")]
  .filter((each) => each.checkVisibility() && each.getBoundingClientRect().width > 1
    && !each.closest("#model-line")).length"""


def test_the_form_is_one_screen_of_few_controls_and_few_steps_of_the_keyboard(app, page):
    run = page.get_by_role("button", name="Run", exact=True)
    covers = "run => run.contains(document.elementFromPoint(...['x', 'y'].map(k => {"
    covers += " const r = run.getBoundingClientRect();"
    covers += " return k === 'x' ? r.x + r.width / 2 : r.y + r.height / 2; })))"
    show(page, app)
    expect(page.locator("#variants summary")).to_have_count(len(FIRST_CHIPS) + 1)
    assert page.evaluate(CONTROLS) <= 25
    page.locator("#mode input").first.focus()
    stops, at = ["mode"], "document.activeElement.closest('.example-row')?.className"
    while not run.evaluate("run => run === document.activeElement"):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(f"{at} ?? String(Math.random())"))
    assert len(set(stops)) <= 15  # the examples are one choice
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        page.evaluate("scrollTo(0, 0)")
        expect(run).to_be_in_viewport(ratio=1)
        assert run.evaluate(covers)  # nothing lies above it
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_the_first_stop_of_the_keyboard_leads_to_run_and_control_enter_runs(app, page, catch):
    slug, started = catch()
    show(page, app)
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to Run")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_focused()

    page.locator("#context textarea").fill("some words")
    page.locator("#budget input").fill("50")
    page.keyboard.press("Control+Enter")
    page.wait_for_url(f"**/run?id={slug}")
    assert [asked.budgets for asked in started] == [("50",)]


def test_a_word_explains_itself_and_a_text_from_right_to_left_runs_that_way(app, page):
    show(page, app)
    open_advanced(page)
    block = page.locator("#protect")
    word = block.get_by_role("button", name="budget, explain")
    assert block.locator("label").evaluate("label => label.control.tagName") == "TEXTAREA"
    tip = page.get_by_role("tooltip").filter(has_text="Entries kept per KV head on average")
    word.focus()
    expect(tip).to_be_visible()
    expect_well_made(page)
    assert word.get_attribute("aria-describedby") == tip.get_attribute("id")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    word.blur()
    word.click()
    expect(tip).to_be_visible()
    expect(block.locator("textarea")).not_to_be_focused()
    page.locator("#context textarea").fill("\u05d3\u05d5\u05d7 4821")
    style = "node => getComputedStyle(node).unicodeBidi"
    assert page.locator("#context textarea").evaluate(style) == "plaintext"


def test_methods_are_added_and_taken_out_by_keyboard(app, page, catch):
    slug, started = catch(variants=("full", "keydiff", "unheard:of=1"), budgets=("64",))
    page.set_viewport_size(PHONE)
    page.goto(f"{app.url}/?from={slug}")
    group, line = page.get_by_role("group", name="Methods"), page.locator("#variants .ckv-wrong")
    chips = group.locator(CHIP)
    # What this version does not know stands there as it is written, with its error.
    expect(line).to_contain_text("Unknown method 'unheard'")
    expect(chips).to_have_text(["KeyDiff", "unheard:of=1"])
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    chips.first.focus()
    page.keyboard.press("ArrowRight")
    expect(chips.last).to_be_focused()
    page.keyboard.press("Delete")
    expect(line).to_have_count(0)

    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(group.get_by_label("Search methods")).to_be_focused()
    expect_well_made_everywhere(page)
    page.keyboard.type("query-aware ADAKV")
    expect(group.get_by_role("status")).to_have_text(re.compile(r"^2 of \d+ methods\.$"))
    page.keyboard.press("Enter")
    expect(group.get_by_role("status")).to_have_text("AdaKV is added.")
    page.keyboard.press("Escape")
    adder = group.locator("summary.ckv-add")
    expect(adder).to_be_focused()
    expect(chips).to_have_text(["KeyDiff", "AdaKV"])
    steps.run(page)
    assert steps.wait_for_slug(page) == slug
    assert [asked.variants for asked in started] == [("full", "keydiff", "adakv")]


def test_a_setup_link_opens_the_form_as_it_was(app, page):
    show(page, app)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    page.locator("#context-bar").get_by_role("button", name="Support chat").click()
    question = page.locator("#question textarea")
    expect(question).to_have_value("What credit does the customer get on the next bill?")
    text = page.locator("#context textarea").input_value()
    question.fill("Which credit?")
    page.get_by_role("button", name="Copy setup link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("window.copied")
    assert link.startswith(f"{app.url}/?setup=")

    page.goto(link)
    expect(question).to_have_value("Which credit?")
    expect(page.locator("#context textarea")).to_have_value(text)
    expect(page.locator("#budget textarea, #budget input").first).to_have_value("10%")
    expect(page.locator("#context-bar")).to_contain_text(" of 8,192 tokens")
    page.goto(f"{link[:-9]}")
    expect(page.locator("#notice")).to_contain_text("This setup link is not whole")


def test_the_menu_of_a_chip_puts_criticalkv_on_top_and_sets_its_own_parameters(app, page, catch):
    slug, started = catch(variants=("full", "adakv"), budgets=("64",))
    page.set_viewport_size(PHONE)
    page.goto(f"{app.url}/?from={slug}")
    group, line = page.get_by_role("group", name="Methods"), page.locator("#variants .ckv-wrong")
    chips = group.locator(CHIP)
    expect(chips).to_have_text(["AdaKV"])
    expect(page.locator("#alpha input")).to_be_hidden()
    chips.last.focus()
    page.keyboard.press("Enter")
    menu = group.get_by_role("dialog", name="AdaKV")
    expect(menu.get_by_role("switch")).to_be_focused()
    page.keyboard.press("Space")
    expect(chips.last).to_have_text("CriticalKV-AdaKV (paper)")
    expect(page.locator("#alpha input")).to_be_visible()
    menu.get_by_role("button", name="Code").click()
    menu.locator("summary", has_text="Parameters").click()
    menu.get_by_label("window", exact=True).fill("16")
    menu.get_by_label("window", exact=True).press("Enter")
    expect(menu.get_by_label("window", exact=True)).to_be_focused()
    expect(chips.last).to_have_text("CriticalKV-AdaKV (code)window 16")
    expect_well_made(page)
    menu.get_by_role("button", name="Duplicate").click()
    expect(line).to_contain_text("is listed twice")
    expect(group.locator("[data-wrong]")).to_have_count(2)
    page.keyboard.press("Escape")
    page.keyboard.press("Delete")
    expect(line).to_have_count(0)
    steps.run(page)
    assert steps.wait_for_slug(page) == slug
    code = "adakv+critical:stage2=pooled,window=16"
    assert [asked.variants for asked in started] == [("full", code)]


def test_the_slider_writes_into_the_field_and_follows_what_is_typed(app, page, catch):
    slug, started = catch()
    show(page, app)
    slider, field = page.get_by_label("Budget slider"), page.locator("#budget input")
    for text, place, is_used in (("35%", "35", True), ("5%, 30%", "5", False), ("64", "5", False)):
        field.fill(text)
        expect(slider).to_have_value(place)
        expect(slider).to_be_enabled(enabled=is_used)
    field.fill("20%")
    field.press("ArrowUp")
    expect(field).to_have_value("21%")
    page.get_by_label("Alpha slider").press("ArrowLeft")
    expect(page.locator("#alpha input")).to_have_value("0.2")
    page.locator("#context textarea").fill("some words " * 200)  # 21 % must hold the window
    steps.run(page)
    assert steps.wait_for_slug(page) == slug
    assert [(asked.budgets, asked.alphas) for asked in started] == [(("21%",), ("0.2",))]
