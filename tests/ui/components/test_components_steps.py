"""The slider over what was held while generating: every number against `HeldSeries`."""

import re
from collections.abc import Callable

import numpy as np
from playwright.sync_api import Locator, expect

from ckv_core.results.records import RetainedSet
from tests.e2e.steps import expect_well_made
from tests.ui.components.components_lab import View, generating_run, small_run


def held_counts() -> list[int]:
    """Entries that the last variant holds in evictable layers, after 0 to 5 tokens."""
    run = generating_run()
    assert run.held is not None
    retained, tokens = RetainedSet.from_mask(run.masks[-1]), len(run.pieces)
    steps = (run.held.mask(retained, tokens + step, step) for step in range(6))
    return [int(held[list(run.evictable)].sum()) for held in steps]


def count(section: Locator) -> int:
    found = re.match(r"([\d,]+) of ([\d,]+) entries", section.locator(".ckv-held").inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def opened(open_view: Callable[..., View], **options: object) -> tuple[View, Locator]:
    view = open_view(**options)
    view.send(kept=generating_run().value())
    view.page.locator("#kept").scroll_into_view_if_needed()
    section = view.page.get_by_role("region", name="While generating")
    section.wait_for()
    return view, section


def test_each_step_of_the_slider_holds_what_the_series_says(open_view):
    view, section = opened(open_view)
    slider = section.get_by_role("slider", name="Generated tokens read")
    expect(slider).to_have_attribute("aria-valuetext", "before the first generated token")
    slider.focus()
    found = [count(section)]
    for step in range(1, 6):
        view.page.keyboard.press("ArrowRight")
        expect(slider).to_have_attribute("aria-valuetext", f"after {step} of 5 generated tokens")
        expect(section.locator(".ckv-where")).to_have_text(f"after {step} of 5 generated tokens")
        found.append(count(section))
    assert found == held_counts()
    assert len(set(np.diff(found))) == 1  # a head gains a token and lets one entry go
    view.page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "before the first generated token")
    expect(section.locator("canvas.ckv-map-top")).to_have_attribute(
        "aria-label", re.compile("Positions 0 to 319")
    )


def test_it_plays_to_the_end_and_not_for_those_who_want_less_motion(open_view):
    view, section = opened(open_view)
    section.get_by_role("button", name="Play").click()
    expect(section.locator(".ckv-where")).to_have_text("after 5 of 5 generated tokens")
    expect(section.get_by_role("button", name="Play")).to_be_visible()
    view.page.emulate_media(reduced_motion="reduce")
    try:
        _, section = opened(open_view)
        expect(section.get_by_role("slider")).to_be_visible()
        expect(section.get_by_role("button", name="Play")).to_be_hidden()
    finally:
        view.page.emulate_media(reduced_motion="no-preference")


def test_it_is_well_made_in_light_and_dark_and_on_a_phone(open_view):
    for width, theme in ((430, "light"), (1440, "dark")):
        view, _ = opened(open_view, width=width, theme=theme)
        expect_well_made(view.page)


def test_a_run_without_such_a_method_has_no_slider(open_view):
    view = open_view()
    view.send(kept=small_run().value())
    view.page.locator("#kept").scroll_into_view_if_needed()
    view.page.locator("#kept .ckv-maps").first.wait_for()
    assert view.page.get_by_role("region", name="While generating").count() == 0
