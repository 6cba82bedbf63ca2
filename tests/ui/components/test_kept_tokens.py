"""Kept tokens in a real browser, every number against numpy: drawn, clicked, dragged, saved."""

import csv
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, Route, expect

from ckv_core.experiment.evidence import evidence as evidence_shares
from ckv_core.records.records import RetainedSet
from tests.e2e.steps import expect_well_made
from tests.ui.components.lab import LOOK, generating_run, small_run

RUN = small_run()
EVICTABLE = list(RUN.evictable)
SPOT = "#variant=3&layer=2&span=60-63&other=kept"
# Of a map whose canvas has this selector: its pen, and a place in its cells' area, which has a
# margin where there are axes.
PEN = """const canvas = [...document.querySelectorAll(selector)].at(-1);
  const pen = canvas.getContext('2d'), ratio = devicePixelRatio;
  const [width, height] = [canvas.width / ratio, canvas.height / ratio];
  const margin = canvas.closest('.ckv-map-row') ? [0, 0, 0, 0] : [30, 36, 9, 31];
  const x = (position) => margin[0] + (position + 0.5) / 300 * (width - margin[1]);
  const y = (layer, part) => margin[2] + (layer + part) / 6 * (height - margin[3]);
  const color = (x, y) => [...pen.getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);"""
DIFFERENCE = "#kept .ckv-difference .ckv-map-base"


def map_of(variant: int) -> str:
    return f"#kept .ckv-map-row[data-variant='{variant}'] .ckv-map-top"


def open_more(page: Page) -> None:
    page.locator("#kept .ckv-more > summary").click()
    page.locator("#kept .ckv-difference .ckv-map-top").wait_for()
    page.wait_for_function(
        """selector => [...document.querySelectorAll(selector)].every((canvas) => canvas
          .getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean))""",
        arg=DIFFERENCE,
    )


def evidence(page: Page) -> dict[str, list[str]]:
    """Rows of the evidence table by variant index."""
    rows = page.eval_on_selector_all(
        "#kept .ckv-evidence tbody tr",
        "rs => rs.map(r => [r.dataset.variant, ...[...r.cells].slice(1, 5).map(c => c.innerText)])",
    )
    return {row[0]: row[1:] for row in rows}


def percent(share: float) -> str:
    return f"{share * 100:.1f} %" if 0 < share * 100 < 9.95 else f"{share * 100:.0f} %"


def shares_of(variant: int, first: int, end: int):
    kept = RetainedSet.from_mask(RUN.masks[variant - 1])
    return evidence_shares(kept, [(first, end)], RUN.evictable, {"window": 32})


def expected_evidence(variant: int, first: int, end: int) -> list[str]:
    """Counts of one such row, as the engine's side has them."""
    shares = shares_of(variant, first, end)
    whole = RUN.masks[variant - 1][EVICTABLE, :, first:end].all(2).sum()
    ratio = f"{shares.mean / shares.chance:.1f}\u00d7"
    return [percent(shares.mean), percent(shares.chance), ratio, f"{whole} of 15"]


def evidence_panel(page: Page, text: str) -> Locator:
    return page.locator("#kept .ckv-evidence", has_text=text)


# --- what it draws --------------------------------------------------------------------------


def ramp_color(share: float) -> NDArray[np.float64]:
    """From the card's ground to the method's hue."""
    ground, hue = np.full(3, 255), np.array([int(LOOK["color"][i : i + 2], 16) for i in (1, 3, 5)])
    return ground + (hue - ground) * round(np.sqrt(share) * 255) / 255


def test_heat_map_paints_the_share_of_heads(open_view):
    page = open_view().show_kept(RUN)
    shares = RUN.masks[1].mean(1)
    rng = np.random.default_rng(0)
    cells = [(int(rng.choice(EVICTABLE)), int(p)) for p in rng.choice(300, 60, replace=False)]
    pixels = page.evaluate(
        f"""([selector, cells]) => {{ {PEN}
          return cells.map(([layer, position]) => color(x(position), y(layer, 0.5)));
        }}""",
        [map_of(2).replace("top", "base"), cells],
    )
    for cell, pixel in zip(cells, pixels, strict=True):
        assert np.abs(np.array(pixel) - ramp_color(shares[cell])).max() <= 2, cell


def test_the_sign_of_a_difference_survives_a_grey_print_in_both_themes(open_view):
    """Cells where the second variant keeps more have a line through their middle, others none."""
    page = open_view().show_kept(RUN)
    open_more(page)
    gaps = RUN.masks[1].sum(1).astype(int) - RUN.masks[0].sum(1)
    cells = [[layer, at] for layer in EVICTABLE for at in range(0, 260, 7)]
    signs = np.array([gaps[layer, at] for layer, at in cells])
    assert (signs < 0).sum() > 5
    for theme in ("light", "dark"):
        contrast = page.evaluate(
            f"""([selector, cells]) => {{ {PEN}
              const grey = (x, y) => {{
                const [r, g, b] = color(x, y);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
              }};
              return cells.map(([layer, position]) => {{
                const [middle, off] = [0.5, 0.25].map((part) => Math.round(y(layer, part)));
                return Math.abs(grey(x(position), middle) - grey(x(position), off));
              }});
            }}""",
            [DIFFERENCE, cells],
        )
        assert np.all(np.array(contrast)[signs < 0] > 30), theme
        assert np.all(np.array(contrast)[signs >= 0] == 0), theme
        image = f'document.querySelector("{DIFFERENCE}").toDataURL()'
        before = page.evaluate(image)
        page.evaluate("document.body.classList.toggle('dark')")
        page.wait_for_function(f"{image} !== {before!r}")


# --- tokens and spans: by search, click, drag, address and answer ---------------------------


def test_search_selects_the_span_and_shows_its_evidence(open_view):
    page = open_view().show_kept(RUN)
    page.get_by_role("button", name="Search text").click()
    box = page.get_by_role("searchbox", name="Search the prompt")

    def wait_for_count(text: str) -> None:
        page.locator("#kept .ckv-count", has_text=text).wait_for()

    box.fill("the NEEDLE is 74")
    wait_for_count("1 of 1")
    page.locator("#kept .ckv-evidence tbody tr").first.wait_for()
    assert evidence(page) == {str(v): expected_evidence(v, 60, 64) for v in (1, 2, 3)}
    assert "span=60-63" in page.url
    box.fill("needle")
    wait_for_count("1 of 2")
    page.get_by_role("button", name="Next match").click()
    wait_for_count("2 of 2")
    wanted = expected_evidence(1, 200, 201)
    expect(page.locator("#kept .ckv-evidence tbody tr").first).to_contain_text(wanted[0])
    assert evidence(page)["1"] == wanted
    page.get_by_role("button", name="Next match").click()
    wait_for_count("1 of 2")
    box.fill("no such words")
    wait_for_count("no match")


def test_a_click_chooses_a_method_everywhere_and_another_one_picks_a_token(open_view):
    page = open_view().show_kept(RUN, answer="Needle is 7421")
    page.evaluate("window.heard = []")
    page.evaluate("addEventListener('hashchange', () => heard.push(location.hash))")
    canvas = page.locator(map_of(2))
    box = canvas.bounding_box()
    x, y = 123.5 / 300 * box["width"], 4.5 / 6 * box["height"]
    canvas.hover(position={"x": x, "y": y})
    tip = page.locator("#kept .ckv-map-row[data-variant='2'] .ckv-map-tip")
    tip.wait_for()
    assert "layer 4 · token 123" in tip.inner_text()
    assert f"kept by {RUN.masks[1][4, :, 123].sum()} of 3 KV heads" in tip.inner_text()
    canvas.click(position={"x": x, "y": y})
    page.locator("#kept .ckv-evidence tr[data-variant='2'][aria-selected='true']").wait_for()
    assert page.evaluate("heard") == ["#variant=2"]
    assert page.locator("#kept .ckv-reader h3").inner_text() == "CriticalKV-SnapKV"
    canvas.click(position={"x": x, "y": y})
    evidence_panel(page, "Its token has one slot in each of 15 KV heads.").wait_for()
    assert page.url.endswith("#variant=2&layer=4&span=123-123")
    off_centre = """node => {
      const [at, box] = [node, node.closest(".ckv-tokens")].map((e) => e.getBoundingClientRect());
      return Math.abs((at.top + at.bottom - box.top - box.bottom) / 2);
    }"""
    assert page.locator("#kept .ckv-tokens [data-t='123']").evaluate(off_centre) < 30
    open_more(page)
    assert page.get_by_label("Layer of the heads map").input_value() == "4"
    page.evaluate("location.hash = '#variant=3'")  # as the table of answers does
    page.locator("#kept .ckv-map-row[data-variant='3'].ckv-chosen").wait_for()
    assert page.locator("#kept .ckv-reader h3").inner_text() == "AdaKV"


def test_two_clicks_and_dragging_select_a_span(open_view):
    page = open_view().show_kept(RUN)
    page.locator("#kept [data-t='20']").click()
    evidence_panel(page, "Its token has").wait_for()
    page.locator("#kept [data-t='31']").click(modifiers=["Shift"])
    evidence_panel(page, "Its 12 tokens have one slot in each of 15 KV heads, 180").wait_for()
    assert evidence(page)["2"] == expected_evidence(2, 20, 32)
    start, stop = (page.locator(f"#kept [data-t='{at}']").bounding_box() for at in (40, 41))
    page.mouse.move(start["x"] + 2, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(stop["x"] + stop["width"] - 5, stop["y"] + 8, steps=5)
    page.mouse.up()
    evidence_panel(page, "Its 2 tokens").wait_for()
    page.keyboard.press("Escape")


def test_the_answers_evidence_is_selected_by_itself_unless_the_address_says_otherwise(open_view):
    page = open_view().show_kept(RUN, answer="Needle is 7421")
    evidence_panel(page, "of the expected answer is still in the cache").wait_for()
    assert evidence(page)["2"] == expected_evidence(2, 61, 64)
    ticks = page.locator("#kept .ckv-ticks strong")
    assert ticks.inner_text() == "\u201cNeedle is 7421\u201d tokens 61\u201363"
    row = page.locator("#kept .ckv-map-row[data-variant='2']")
    assert f"answer kept: {percent(shares_of(2, 61, 64).mean)}" in row.inner_text()
    assert page.locator("#kept .t-span").all_inner_texts() == ["Needle ", "is ", "7421"]
    assert "span=" not in page.url
    page.locator("#kept [data-t='70']").click()
    page.get_by_role("button", name="Back to the expected answer").click()
    expect(ticks).to_have_text("\u201cNeedle is 7421\u201d tokens 61\u201363")
    open_view(fragment="#span=12-12&layer=1").show_kept(RUN, answer="Needle is 7421")
    evidence_panel(page, "Its token has").wait_for()
    open_view().show_kept(RUN, answer="no such answer")
    evidence_panel(page, "The compressed prompt does not contain the expected answer.").wait_for()
    assert page.locator("#kept .ckv-evidence table").is_hidden()


def test_of_several_budgets_those_of_the_chosen_one_are_fetched(open_view):
    page = open_view(fragment="#variant=3").page
    fetched = []
    page.on("request", lambda each: fetched.append(each.url.rsplit("/", 2)[-2:]))
    groups = RUN.value(group=["5%", "5%", "20%"])["variants"]
    open_view(fragment="#variant=3").show_kept(RUN, variants=groups)
    rows = page.locator("#kept .ckv-map-row[data-variant]")
    assert rows.evaluate_all("rs => rs.map(r => r.dataset.variant)") == ["3"]
    assert [of for of, name in fetched if name == "retained"] == ["3"]
    page.evaluate("location.hash = '#variant=1'")
    expect(rows).to_have_count(2)
    page.evaluate("location.hash = '#variant=3'")
    expect(rows).to_have_count(1)
    assert sorted(of for of, name in fetched if name == "retained") == ["1", "2", "3"]


def test_why_an_answer_was_lost_is_one_sentence_of_the_chosen_method_and_passage(open_view):
    page = open_view().show_kept(RUN, answer="Needle is 7421")
    button = page.get_by_role("button", name="Why was it lost?")
    expect(button).to_be_hidden()  # nobody computes for this reader

    page = open_view().show_kept(RUN, answer="Needle is 7421", why=True)
    sent: list[dict] = []
    lines = '{"progress": "12 rows"}\n{"sentence": "<b>Layer 3</b> brings it back."}\n'

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(body=lines, content_type="application/x-ndjson")

    page.route("**/why", answer)
    button.click()
    sentence = page.locator("#kept .ckv-why")
    expect(sentence).to_contain_text("<b>Layer 3</b> brings it back.")
    assert sent == [{"variant": 1, "evidence": []}]
    page.locator("#kept .ckv-evidence tr[data-variant='2'] button").click()
    expect(sentence).to_be_hidden()
    page.unroute("**/why")


# --- evidence that is saved -----------------------------------------------------------------


def saved(page: Page, kind: str) -> bytes:
    """The file of one item of its menu; that by key is the last one's too."""
    page.get_by_label("Export: Evidence by layer").press("Enter")
    with page.expect_download() as download:
        page.locator("#kept .ckv-evidence .ckv-export").get_by_text(kind, exact=True).press("Enter")
    assert download.value.suggested_filename == f"evidence-255-299.{kind.lower()}"
    return download.value.path().read_bytes()


def test_the_evidence_of_a_span_is_saved_by_layer(open_view):
    """Of a span that ends after the compressed prompt, the part inside it."""
    value = RUN.value(spec=["snapkv", "=HYPERLINK(1)"])
    page = open_view(fragment="#span=255-304").show_kept(RUN, variants=value["variants"])
    head, *rows = csv.reader(saved(page, "CSV").decode().splitlines())
    assert head == ["variant", "spec", "layer", "slots_held", "slots", "share", "share_by_chance"]
    assert [row[:3] for row in rows] == [
        [str(each["index"]), each["spec"].replace("=H", "'=H"), str(layer)]
        for each in value["variants"]
        for layer in EVICTABLE
    ]
    paths = page.locator("#kept .ckv-layer-bars").all()
    assert len(paths) == 3
    for variant, bars in enumerate(paths, 1):
        part = rows[5 * variant - 5 : 5 * variant]
        held = RUN.masks[variant - 1][EVICTABLE, :, 255:300].sum((1, 2))
        assert (held < 135).all()
        assert [row[3:5] for row in part] == [[str(count), "135"] for count in held]
        np.testing.assert_allclose([float(row[5]) for row in part], held / 135)
        chance = np.mean([float(row[6]) for row in part])
        assert chance == pytest.approx(shares_of(variant, 255, 300).chance)
        drawn = re.findall(r"v-([\d.]+)h", bars.locator("path").nth(1).get_attribute("d"))
        np.testing.assert_allclose([float(height) / 26 for height in drawn], held / 135)
    page.get_by_label("Export: Evidence by layer").press("Enter")
    page.get_by_role("button", name="As a table").click()
    table = page.locator("#kept .ckv-by-layer tbody tr")
    shares = RUN.masks[1][5, :, 255:300].mean()
    assert table.nth(5).locator("td").nth(1).inner_text() == percent(shares)


def test_nothing_is_saved_of_a_span_that_is_read_after_eviction(open_view):
    page = open_view(fragment="#span=305-310").show_kept(RUN)
    evidence_panel(page, "Read after eviction").wait_for()
    expect(page.get_by_label("Export: Evidence by layer")).to_be_hidden()


# --- keys, wheel and fingers ----------------------------------------------------------------


def wait_until_zoomed(page: Page) -> None:
    page.get_by_role("button", name="Show all", exact=True).wait_for()


def test_keys_move_a_cursor_zoom_and_clear(open_view):
    page = open_view().show_kept(RUN)
    open_more(page)
    live, where = page.locator("#kept p[aria-live=polite]"), page.locator("#kept .ckv-where")
    stops = page.locator("#kept .ckv-map-row .ckv-map-top").evaluate_all(
        "es => es.map(e => e.tabIndex)"
    )
    assert stops == [0, -1, -1]
    page.locator(map_of(1)).focus()
    for key in ("Home", *["ArrowRight"] * 7, "ArrowDown"):
        page.keyboard.press(key)
    assert "layer 1 · token 7 " in live.inner_text()
    assert f"kept by {RUN.masks[0][1, :, 7].sum()} of 3 KV heads" in live.inner_text()
    page.keyboard.press("Enter")
    evidence_panel(page, "Its token has").wait_for()
    assert "span=7-7" in page.url
    page.keyboard.press("+")
    wait_until_zoomed(page)
    expect(where).to_contain_text("of 300")
    labels = page.locator("#kept .ckv-map-top").evaluate_all("es => es.map(e => e.ariaLabel)")
    assert len({re.findall(r"Positions (\d+ to \d+)", label)[0] for label in labels}) == 1
    page.keyboard.press("0")
    expect(where).to_contain_text("positions 0\u2013299")
    page.keyboard.press("Escape")
    evidence_panel(page, "click a token").wait_for()
    assert "span=" not in page.url
    page.locator("#kept .ckv-tokens").focus()
    page.keyboard.press("ArrowRight")
    assert f"kept by {RUN.slots(1, 1)} of 15 heads" in live.inner_text()


def test_on_a_phone_two_fingers_zoom_all_maps_and_targets_are_44_pixels(open_view):
    page = open_view(width=430).show_kept(RUN, answer="Needle is 7421")
    small = page.eval_on_selector_all(
        "#kept button, #kept select, #kept input",
        """es => es.map(e => e.closest("[data-variant]") ?? e)  // the whole row takes the finger
          .filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 43.5)
          .map(e => e.outerHTML)""",
    )
    assert small == []
    canvas = page.locator(map_of(1))
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    touch = page.context.new_cdp_session(page)
    for kind, *gaps in (
        ("touchStart", -30),
        ("touchStart", -30, 30),
        ("touchMove", -60, 60),
        ("touchMove", -90, 90),
        ("touchEnd",),
    ):
        y, middle = box["y"] + 30, box["x"] + box["width"] / 2
        points = [{"x": middle + gap, "y": y, "id": i} for i, gap in enumerate(gaps)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait_until_zoomed(page)
    assert evidence_panel(page, "expected answer").is_visible()


# --- what is fetched, and may be hostile ----------------------------------------------------


def test_a_failed_fetch_says_so_and_can_be_tried_again(open_view, faults):
    faults.expect("503")
    view = open_view()
    view.lab.failing.add("small")
    page = view.send(kept=RUN.value()).page
    again = page.get_by_role("button", name="Fetch the kept tokens again")
    again.wait_for()
    assert "could not be fetched: the server answered 503" in page.locator("#kept").inner_text()
    view.lab.failing.clear()
    again.click()
    page.wait_for_selector("#kept .ckv-map-row")
    view.send(kept={**RUN.value(), "kv_heads": 4, "key": "2"})
    page.locator("#kept .ckv-empty", has_text="bytes instead of").wait_for()


def test_a_new_key_fetches_again_and_none_empties(open_view):
    view = open_view()
    page = view.show_kept(RUN)
    with page.expect_response("**/data/small/1/retained"):
        view.send(kept={**RUN.value(), "key": "2"})
    page.wait_for_selector("#kept .ckv-map-row")
    view.send(kept=None)
    page.locator("#kept .ckv-empty", has_text="No maps yet").wait_for()
    assert page.locator("#kept .ckv-map-row").count() == 0


# --- the slider over what was held while generating -----------------------------------------


def held_counts() -> list[int]:
    """Entries that the last variant holds in evictable layers, after 0 to 5 tokens."""
    run = generating_run()
    retained, tokens = RetainedSet.from_mask(run.masks[-1]), len(run.pieces)
    steps = (run.held.mask(retained, tokens + step, step) for step in range(6))
    return [int(held[EVICTABLE].sum()) for held in steps]


def slider_of(page: Page) -> tuple[Locator, Locator, Locator]:
    """What counts, what says where it stands, and the slider."""
    section = page.get_by_role("region", name="While generating")
    slider = section.get_by_role("slider", name="Generated tokens read")
    return section.locator(".ckv-held"), section.locator(".ckv-where"), slider


def test_each_step_of_the_slider_holds_what_the_series_says(open_view):
    page = open_view(theme="dark", fragment=SPOT).show_kept(generating_run())
    open_more(page)
    expect_well_made(page)
    count, where, slider = slider_of(page)
    slider.focus()
    found = []
    for step in range(6):
        told = f"after {step} of 5 generated tokens" if step else "before the first generated token"
        expect(slider).to_have_attribute("aria-valuetext", told)
        expect(where).to_have_text(told)
        (held,) = re.findall(r"^([\d,]+) of [\d,]+ entries", count.inner_text())
        found.append(int(held.replace(",", "")))
        page.keyboard.press("ArrowRight")
    assert found == held_counts()
    assert len(set(np.diff(found))) == 1  # a head gains a token and lets one entry go
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "before the first generated token")
    top = page.get_by_role("region", name="While generating").locator("canvas.ckv-map-top")
    expect(top).to_have_attribute("aria-label", re.compile("Positions 0 to 319"))
