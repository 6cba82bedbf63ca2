"""axe-core finds nothing, light and narrow or dark and wide; motion can be turned off."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.ui.components.components_lab import card, medium_run, small_run
from tests.ui.components.test_components_results import status, summary


@pytest.mark.parametrize(("theme", "width"), [("light", 430), ("dark", 1600)])
def test_axe_finds_no_violation(open_view, theme, width):
    view = open_view(width, theme, "#token=61&variant=3&layer=2&span=60-63")
    page = view.page
    cards = [
        card(0, "Full cache", ["The ", "code"], reference=True, stopped="eos", answer="found"),
        card(1, "SnapKV", ["The ", "end", "."], first_difference=1, status="generating"),
        card(2, "SnapKV", ["The ", "end"], first_difference=1, status="generating"),
    ]
    view.send(status=status(), summary=summary(), generations={"cards": cards, "answer": "x"})
    page.locator("#generations .ckv-card").nth(2).wait_for()
    view.show_kept(small_run())
    page.locator("#kept .ckv-evidence tbody tr").first.wait_for()
    page.locator("#kept summary").click()
    found = Axe().run(page).response["violations"]
    details = [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found]
    assert details == []


def test_touch_targets_are_44_pixels_on_narrow_screens(open_view):
    view = open_view(430)
    view.show_kept(small_run())
    small = view.page.eval_on_selector_all(
        "#kept button, #kept select, #kept input",
        "es => es.filter(e => e.getBoundingClientRect().height < 43.5).map(e => e.outerHTML)",
    )
    assert small == []


def test_theme_switch_repaints_the_maps(open_view):
    view = open_view()
    view.show_kept(medium_run())
    page = view.page
    image = "document.querySelector('#kept .ckv-difference .ckv-map-base').toDataURL()"
    before = page.evaluate(image)
    page.evaluate("document.body.classList.toggle('dark')")
    page.wait_for_function(f"{image} !== {before!r}")
