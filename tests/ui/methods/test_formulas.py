"""The formulas on the Methods page: rendered from what is written, drawn, and read on a phone."""

import html
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ckv_core.methods import METHODS
from tests.e2e.steps import expect_well_made
from ui.methods.cards import FORMULAS, methods_list

WRITTEN: dict[str, str] = json.loads(
    (Path(__file__).parents[3] / "ui" / "methods" / "formulas.json").read_text("utf-8")
)


def test_every_method_has_its_formula_rendered_as_it_is_written():
    assert WRITTEN.keys() == FORMULAS.keys() == {m.name for m in METHODS if m.evicts}
    for name, mathml in FORMULAS.items():
        source = re.search(r"<annotation[^>]*>(.*)</annotation>", mathml, re.DOTALL)
        assert source is not None
        assert html.unescape(source[1]) == WRITTEN[name]


def facts_of(method: str) -> dict[str, str]:
    """What a card says, by name."""
    card = methods_list().partition(f'id="method-{method}"')[2].partition("</article>")[0]
    return dict(re.findall(r"<dt>([^<]+)</dt><dd>(.*?)</dd>", card))


@pytest.mark.parametrize("method", [*METHODS], ids=lambda method: method.name)
def test_every_method_says_where_codes_disagree_and_what_it_costs(method):
    facts = facts_of(method.name)
    assert len(facts["Codes and cost"].split()) > 12
    assert facts["Extra memory"]


def test_where_codes_disagree_and_what_it_costs_comes_from_the_method_itself():
    assert "tiles of 128 against 256" in facts_of("compactor")["Codes and cost"]
    # Of a method without a file of its own, from that of its scorer.
    shared = facts_of("layer_defensivekv")["Codes and cost"]
    assert shared == facts_of("defensivekv")["Codes and cost"]


def test_formulas_are_drawn_and_nothing_is_wider_than_the_page(browser, open_app):
    page = browser.new_page()
    page.goto(f"{open_app.url}/methods?__theme=light")
    page.locator(".ckv-formula math").first.wait_for()
    for width, theme in ((430, "light"), (1440, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("theme => document.body.classList.add(theme)", theme)
        boxes = [node.bounding_box() for node in page.locator(".ckv-formula math").all()]
        assert len(boxes) == len(FORMULAS)
        assert all(box is not None and box["height"] > 10 for box in boxes)
        expect_well_made(page)
    page.close()


def test_figures_show_what_is_kept_at_the_budget_that_is_chosen_by_key(browser, open_app):
    page = browser.new_page(viewport={"width": 430, "height": 900})
    page.goto(f"{open_app.url}/methods")
    figures = page.locator(".ckv-kept")
    expect(figures).to_have_count(len([each for each in METHODS if each.evicts]))
    knorm = page.locator("#method-knorm .ckv-kept")
    expect(knorm.locator("path")).to_have_count(3)
    expect(knorm).to_contain_text("Knorm at 10 % (")
    before = knorm.locator(".ckv-kept-above").get_attribute("d")
    page.get_by_role("radio", name="10 %").focus()
    page.keyboard.press("ArrowRight")
    expect(knorm).to_contain_text("Knorm at 20 % (")
    expect(knorm).to_contain_text("of its entries are SnapKV's too")
    assert knorm.locator(".ckv-kept-above").get_attribute("d") != before
    # Beside itself nothing is drawn.
    expect(page.locator("#method-snapkv .ckv-kept path")).to_have_count(2)
    page.close()
