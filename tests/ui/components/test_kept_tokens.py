"""Kept tokens in a real browser, every number against numpy: drawn, clicked, dragged, saved."""

import csv
import re
import struct
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, expect

from ckv_core.experiment.evidence import evidence as evidence_shares
from ckv_core.records.records import RetainedSet
from tests.e2e.steps import expect_well_made
from tests.ui.components.lab import card, generating_run, large_run, small_run
from ui.looks.palette import STOPS

RUN = small_run()
EVICTABLE = list(RUN.evictable)
SPOT = "#token=61&variant=3&layer=2&span=60-63&other=kept"
# Of a map whose canvas has this selector: its pen, the size of its cells' area, and a place in it.
PEN = """const canvas = [...document.querySelectorAll(selector)].at(-1);
  const pen = canvas.getContext('2d'), ratio = devicePixelRatio;
  const [width, height] = [canvas.width / ratio, canvas.height / ratio];
  const x = (position) => 30 + (position + 0.5) / 300 * (width - 36);
  const y = (layer, part) => 9 + (layer + part) / 6 * (height - 31);
  const color = (x, y) => [...pen.getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);"""
DIFFERENCE = "#kept .ckv-difference .ckv-map-base"


def map_of(variant: int) -> str:
    return f"#kept figure[data-variant='{variant}'] .ckv-map-top"


def evidence(page: Page) -> dict[str, list[str]]:
    """Rows of the evidence table by variant index."""
    rows = page.eval_on_selector_all(
        "#kept .ckv-evidence tbody tr",
        "rs => rs.map(r => [r.dataset.variant, ...[...r.cells].slice(1, 5).map(c => c.innerText)])",
    )
    return {row[0]: row[1:] for row in rows}


def percent(share: float) -> str:
    return f"{share * 100:.1f}%" if 0 < share * 100 < 9.95 else f"{share * 100:.0f}%"


def shares_of(variant: int, first: int, end: int):
    kept = RetainedSet.from_mask(RUN.masks[variant - 1])
    return evidence_shares(kept, [(first, end)], RUN.evictable, {"window": 32})


def expected_evidence(variant: int, first: int, end: int) -> list[str]:
    """Counts of one such row, as the engine's side has them."""
    shares = shares_of(variant, first, end)
    whole = RUN.masks[variant - 1][EVICTABLE, :, first:end].all(2).sum()
    ratio = f"{shares.mean / shares.chance:.2f}\u00d7"
    return [percent(shares.mean), f"{whole} / 15", percent(shares.chance), ratio]


def token_panel(page: Page, text: str) -> Locator:
    return page.locator("#kept .ckv-token-panel", has_text=text)


def evidence_panel(page: Page, text: str) -> Locator:
    return page.locator("#kept .ckv-evidence", has_text=text)


# --- what it draws --------------------------------------------------------------------------


def ramp_color(share: float) -> NDArray[np.float64]:
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in STOPS["DENSITY_STOPS"]])
    at = round(np.sqrt(share) * 255) / 255 * (len(stops) - 1)
    return np.array([np.interp(at, range(len(stops)), stops[:, i]) for i in range(3)])


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


def test_text_shades_count_evictable_slots(open_view):
    page = open_view().show_kept(RUN)
    page.get_by_label("Variant that shades the text").select_option("2")
    page.locator("#kept figure[data-variant='3'].ckv-chosen").wait_for()
    titles = page.eval_on_selector_all(
        "#kept .ckv-tokens .t", "es => es.map(e => [+e.dataset.t, e.title, e.className])"
    )
    assert len(titles) == 320
    for token, title, name in titles[300:]:
        assert "read after eviction" in title, (token, name)
    for token, title, name in titles[:300]:
        slots = RUN.slots(3, token)
        assert f"kept by {slots} of 15 slots" in title
        assert ("t0" in name.split()) == (slots == 0)
    assert RUN.slots(3, 151) == 0


def test_difference_and_share_table_agree_with_numpy(open_view):
    page = open_view().show_kept(RUN)

    def differs(text: str) -> Locator:
        return page.locator(f'#kept .ckv-difference [aria-label*="{text}"]')

    # It begins with the first variant with CriticalKV against its base.
    differs("CriticalKV-SnapKV minus SnapKV").wait_for()
    page.get_by_label("First variant").select_option("2")
    page.get_by_label("Second variant").select_option("1")
    differs("AdaKV minus CriticalKV-SnapKV").wait_for()
    page.locator("#kept .ckv-difference .ckv-map-top").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    one, two = (int(RUN.masks[v][0, :, 10].sum()) for v in (2, 1))
    live = page.locator("#kept p[aria-live=polite]").inner_text()
    assert f"KV heads of 3: AdaKV {one}, CriticalKV-SnapKV {two}" in live
    page.locator("#kept summary").click()
    rows = page.locator("#kept .ckv-share tbody tr").all_inner_texts()
    assert rows[3].split("\t") == ["3 (not evicted)", "100%", "100%", "100%"]
    assert rows[5].split("\t") == ["5", *(percent(mask[5].mean()) for mask in RUN.masks)]


@pytest.mark.slow
def test_of_128k_positions_only_what_is_seen_becomes_words(open_view):
    page = open_view().show_kept(large_run())
    assert "of 131,072" in page.locator("#kept .ckv-where").inner_text()
    assert 0 < page.locator("#kept .t").count() < 4000
    page.get_by_role("searchbox", name="Search the prompt").fill("rare names")
    page.locator("#kept .ckv-count", has_text="1 of").wait_for()


# --- tokens and spans: by search, click, drag, address and answer ---------------------------


def test_search_selects_the_span_and_shows_its_evidence(open_view):
    page = open_view().show_kept(RUN)
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
    assert evidence(page)["1"] == expected_evidence(1, 200, 201)
    page.get_by_role("button", name="Next match").click()
    wait_for_count("1 of 2")
    box.fill("no such words")
    wait_for_count("no match")


def test_a_click_in_a_map_picks_token_layer_and_variant(open_view):
    page = open_view().show_kept(RUN)
    canvas = page.locator(map_of(2))
    box = canvas.bounding_box()
    x = 30 + (123 + 0.5) / 300 * (box["width"] - 36)
    y = 9 + 4.5 / 6 * (box["height"] - 31)
    canvas.hover(position={"x": x, "y": y})
    tip = page.locator("#kept figure[data-variant='2'] .ckv-map-tip")
    tip.wait_for()
    assert "layer 4 · token 123" in tip.inner_text()
    assert f"kept by {RUN.masks[1][4, :, 123].sum()} of 3 KV heads" in tip.inner_text()
    canvas.click(position={"x": x, "y": y})
    token_panel(page, "token 123, layer 4 framed").wait_for()
    assert page.url.endswith("#token=123&variant=2&layer=4")
    off_centre = """node => {
      const [at, box] = [node, node.closest(".ckv-tokens")].map((e) => e.getBoundingClientRect());
      return Math.abs((at.top + at.bottom - box.top - box.bottom) / 2);
    }"""
    assert page.locator("#kept .ckv-tokens [data-t='123']").evaluate(off_centre) < 30
    captions = page.locator("#kept .ckv-slots figcaption .ckv-num").all_inner_texts()
    assert captions == [f"{RUN.slots(variant, 123)} / 15" for variant in (1, 2, 3)]
    assert page.get_by_label("Layer of the heads map").input_value() == "4"
    assert page.get_by_label("Variant that shades the text").input_value() == "1"


def test_two_clicks_and_dragging_select_a_span(open_view):
    page = open_view().show_kept(RUN)
    page.locator("#kept [data-t='20']").click()
    page.locator("#kept .ckv-token-panel q").wait_for()
    page.locator("#kept [data-t='31']").click(modifiers=["Shift"])
    evidence_panel(page, "tokens 20\u201331").wait_for()
    assert evidence(page)["2"] == expected_evidence(2, 20, 32)
    start, stop = (page.locator(f"#kept [data-t='{at}']").bounding_box() for at in (40, 41))
    page.mouse.move(start["x"] + 2, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(stop["x"] + stop["width"] - 5, stop["y"] + 8, steps=5)
    page.mouse.up()
    evidence_panel(page, "tokens 40\u201341").wait_for()
    page.keyboard.press("Escape")


def test_the_answers_evidence_is_selected_by_itself_unless_the_address_says_otherwise(open_view):
    page = open_view().show_kept(RUN, answer="Needle is 7421")
    evidence_panel(page, "tokens 61\u201363").wait_for()
    assert evidence(page)["2"] == expected_evidence(2, 61, 64)
    assert "span=" not in page.url
    page.get_by_role("button", name="Clear").click()
    evidence_panel(page, "Search, drag").wait_for()
    open_view(fragment="#token=12&layer=1").show_kept(RUN, answer="Needle is 7421")
    token_panel(page, "token 12, layer 1").wait_for()
    assert evidence(page) == {}
    open_view().show_kept(RUN, answer="no such answer")
    missing = "The reference answer does not occur in the compressed prompt."
    evidence_panel(page, missing).wait_for()
    assert page.get_by_role("button", name="Find the reference answer").count() == 0
    assert evidence(page) == {}


def test_the_address_opens_the_same_spot(open_view):
    page = open_view(fragment=SPOT, anew=True).show_kept(RUN)
    token_panel(page, "token 61, layer 2").wait_for()
    assert page.locator("#kept figure[data-variant='3'].ckv-chosen").count() == 1
    assert evidence(page)["3"] == expected_evidence(3, 60, 64)
    page.evaluate("location.hash = '#token=999999&layer=77&span=5-2&variant=x'")
    page.evaluate("location.hash = '#token=12&layer=1'")
    token_panel(page, "token 12, layer 1").wait_for()


def test_the_first_difference_is_reached_from_the_evidence(open_view):
    view = open_view(fragment="#span=60-63")
    words = [f"word{i} " for i in range(900)]
    others = [*words[:700], "other ", *words[701:]]
    cards = [
        card(0, "Full cache", words, reference=True),
        card(1, "SnapKV", others, first_difference=700),
        card(2, "CriticalKV-SnapKV", words),
    ]
    page = view.send(generations={"cards": cards, "answer": ""}).page
    page.locator("#generations .ckv-card").nth(2).wait_for()
    view.send(kept=RUN.value(first_difference=[700, None, 3], finished=[True] * 3))
    page.locator("#kept").scroll_into_view_if_needed()
    cells = page.locator("#kept .ckv-evidence tbody tr td:last-child")
    cells.nth(2).wait_for()
    assert cells.all_inner_texts() == ["token 701", "none", "token 4"]
    assert cells.get_by_role("button").count() == 1  # the last one's text is not on the page
    page.get_by_role("button", name="Go to token 701 of SnapKV, the first that differs").focus()
    page.keyboard.press("Enter")
    text = page.locator("#generations .ckv-card").nth(1).locator(".ckv-text")
    assert text.evaluate("e => e === document.activeElement")
    mark, frame = text.locator(".ckv-diff").bounding_box(), text.bounding_box()
    assert frame["y"] <= mark["y"] <= frame["y"] + frame["height"] - mark["height"]
    assert 0 <= mark["y"] <= 1000 - mark["height"]


# --- evidence that is saved -----------------------------------------------------------------


def saved(page: Page, kind: str) -> bytes:
    """The file of one of its buttons; that by key is the last one's too."""
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Evidence by layer as {kind}").press("Enter")
    assert download.value.suggested_filename == f"evidence-255-299.{kind.lower()}"
    return download.value.path().read_bytes()


def test_the_evidence_of_a_span_is_saved_by_layer_and_as_a_picture(open_view):
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
    picture = ElementTree.fromstring(saved(page, "SVG"))
    inner = picture.findall("{*}svg")
    assert len(inner) == 3
    for variant, bars in enumerate(inner, 1):
        part = rows[5 * variant - 5 : 5 * variant]
        held = RUN.masks[variant - 1][EVICTABLE, :, 255:300].sum((1, 2))
        assert (held < 135).all()
        assert [row[3:5] for row in part] == [[str(count), "135"] for count in held]
        np.testing.assert_allclose([float(row[5]) for row in part], held / 135)
        chance = np.mean([float(row[6]) for row in part])
        assert chance == pytest.approx(shares_of(variant, 255, 300).chance)
        drawn = [float(bar.get("height")) / 26 for bar in bars.findall("{*}rect")[::2]]
        np.testing.assert_allclose(drawn, held / 135)
    told = [text.text.partition(":")[0] for text in picture.findall("{*}text")[1:]]
    assert told == [each["label"] for each in value["variants"]]
    image = saved(page, "PNG")
    assert image.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", image[16:24])
    assert (width, height) == (2 * int(picture.get("width")), 2 * int(picture.get("height")))


def test_nothing_is_saved_of_a_span_that_is_read_after_eviction(open_view):
    page = open_view(fragment="#span=305-310").show_kept(RUN)
    evidence_panel(page, "Read after eviction").wait_for()
    assert page.get_by_role("button", name="Evidence by layer as CSV").count() == 0


# --- keys, wheel and fingers ----------------------------------------------------------------


def wait_until_zoomed(page: Page) -> None:
    page.wait_for_function(
        "!/ 0.299 /.test(document.querySelector('#kept .ckv-where').textContent)"
    )


def test_keys_move_a_cursor_zoom_and_clear(open_view):
    page = open_view().show_kept(RUN)
    live, where = page.locator("#kept p[aria-live=polite]"), page.locator("#kept .ckv-where")
    page.locator(map_of(1)).focus()
    for key in ("Home", *["ArrowRight"] * 7, "ArrowDown"):
        page.keyboard.press(key)
    assert "layer 1 · token 7 " in live.inner_text()
    assert f"kept by {RUN.masks[0][1, :, 7].sum()} of 3 KV heads" in live.inner_text()
    page.keyboard.press("Enter")
    token_panel(page, "token 7, layer 1").wait_for()
    page.keyboard.press("+")
    wait_until_zoomed(page)
    expect(where).to_contain_text("of 300")
    labels = page.locator("#kept .ckv-map-top").evaluate_all("es => es.map(e => e.ariaLabel)")
    assert len({re.findall(r"Positions (\d+ to \d+)", label)[0] for label in labels}) == 1
    page.keyboard.press("0")
    expect(where).to_contain_text("positions 0\u2013299")
    page.keyboard.press("Escape")
    token_panel(page, "Click a token").wait_for()
    assert "token=" not in page.url
    page.locator("#kept .ckv-tokens").focus()
    page.keyboard.press("ArrowRight")
    assert f"kept by {RUN.slots(1, 1)} of 15 slots" in live.inner_text()


def test_wheel_zooms_about_the_pointer_only_when_asked(open_view):
    page = open_view().show_kept(RUN)
    page.locator(map_of(1)).hover(position={"x": 150, "y": 60})
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(150)
    assert "positions 0\u2013299" in page.locator("#kept .ckv-where").inner_text()
    page.locator(map_of(1)).hover(position={"x": 150, "y": 60})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    wait_until_zoomed(page)


def test_on_a_phone_two_fingers_zoom_all_maps_and_targets_are_44_pixels(open_view):
    page = open_view(width=430).show_kept(RUN)
    small = page.eval_on_selector_all(
        "#kept button, #kept select, #kept input",
        "es => es.filter(e => e.getBoundingClientRect().height < 43.5).map(e => e.outerHTML)",
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
        y, middle = box["y"] + 60, box["x"] + box["width"] / 2
        points = [{"x": middle + gap, "y": y, "id": i} for i, gap in enumerate(gaps)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait_until_zoomed(page)
    assert token_panel(page, "Click a token").is_visible()


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
    page.wait_for_selector("#kept .ckv-maps")
    view.send(kept={**RUN.value(), "kv_heads": 4, "key": "2"})
    page.locator("#kept .ckv-empty", has_text="bytes instead of").wait_for()


def test_a_new_key_fetches_again_and_none_empties(open_view):
    view = open_view()
    page = view.show_kept(RUN)
    with page.expect_response("**/data/small/1/retained"):
        view.send(kept={**RUN.value(), "key": "2"})
    page.wait_for_selector("#kept .ckv-maps")
    view.send(kept=None)
    page.locator("#kept .ckv-empty", has_text="appears here").wait_for()
    assert page.locator("#kept .ckv-maps").count() == 0


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


def test_it_plays_to_the_end_and_not_for_those_who_want_less_motion(open_view):
    page = open_view().show_kept(generating_run())
    _, where, slider = slider_of(page)
    play = page.get_by_role("button", name="Play", exact=True)
    play.click()
    expect(where).to_have_text("after 5 of 5 generated tokens")
    expect(play).to_be_visible()
    page.emulate_media(reduced_motion="reduce")
    try:
        open_view().show_kept(generating_run())
        expect(slider).to_be_visible()
        expect(play).to_be_hidden()
    finally:
        page.emulate_media(reduced_motion="no-preference")
    open_view().show_kept(RUN)  # whose methods evict nothing while they generate
    expect(slider).to_have_count(0)
