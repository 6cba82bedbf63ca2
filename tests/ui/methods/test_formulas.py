"""The formulas on the Methods page: rendered from what is written, drawn, and read on a phone."""

import html
import json
import re
from pathlib import Path

from playwright.sync_api import Browser

from ckv_core.methods import METHODS
from tests.e2e.steps import expect_well_made
from tests.ui.served_app import Served
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


def test_where_codes_disagree_and_what_it_costs_comes_from_the_method_itself():
    card = methods_list().partition('id="method-compactor"')[2].partition("</article>")[0]
    assert "Codes and cost" in card
    assert "tiles of 128 against 256" in card


def test_formulas_are_drawn_and_nothing_is_wider_than_the_page(browser: Browser, open_app: Served):
    page = browser.new_page()
    page.goto(f"{open_app.url}/methods?__theme=light")
    page.locator(".ckv-formula math").first.wait_for()
    for width, theme in ((430, "light"), (1440, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("theme => document.body.classList.add(theme)", theme)
        boxes = [node.bounding_box() for node in page.locator(".ckv-formula math").all()]
        assert len(boxes) == len(FORMULAS)
        assert all(box is not None and box["height"] > 12 for box in boxes)
        expect_well_made(page)
    page.close()
