"""Kept tokens in use: clicks, keys, wheel, fingers, addresses, failures, hostile text."""

import csv
import re
import struct
from xml.etree import ElementTree

import numpy as np
import pytest

from ckv_core.analysis.evidence import evidence as evidence_shares
from ckv_core.results.records import RetainedSet
from tests.ui.components.components_lab import (
    HOSTILE,
    View,
    card,
    evidence,
    expected_evidence,
    small_run,
)


def test_two_clicks_and_dragging_select_a_span(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    page = view.page
    page.locator("#kept [data-t='20']").click()
    page.locator("#kept .ckv-token-panel q").wait_for()
    page.locator("#kept [data-t='31']").click(modifiers=["Shift"])
    page.locator("#kept .ckv-evidence", has_text="tokens 20\u201331").wait_for()
    assert evidence(view)["2"] == expected_evidence(run, 2, 20, 32)
    start = page.locator("#kept [data-t='40']").bounding_box()
    stop = page.locator("#kept [data-t='41']").bounding_box()
    assert start is not None
    assert stop is not None
    page.mouse.move(start["x"] + 2, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(stop["x"] + stop["width"] - 5, stop["y"] + 8, steps=5)
    page.mouse.up()
    page.locator("#kept .ckv-evidence", has_text="tokens 40\u201341").wait_for()
    page.keyboard.press("Escape")


def test_an_answer_is_found_in_the_prompt_or_said_to_be_missing(open_view):
    view = open_view()
    view.show_kept(small_run(), answer="no such answer")
    missing = "The reference answer does not occur in the compressed prompt."
    view.page.locator("#kept .ckv-evidence", has_text=missing).wait_for()
    assert view.page.get_by_role("button", name="Find the reference answer").count() == 0
    assert evidence(view) == {}


def test_the_answers_evidence_is_selected_by_itself_unless_the_address_says_otherwise(open_view):
    view, run = open_view(), small_run()
    view.show_kept(run, answer="Needle is 7421")
    page = view.page
    page.locator("#kept .ckv-evidence", has_text="tokens 61\u201363").wait_for()
    assert evidence(view)["2"] == expected_evidence(run, 2, 61, 64)
    assert "span=" not in page.url
    page.get_by_role("button", name="Clear").click()
    page.locator("#kept .ckv-evidence", has_text="Search, drag").wait_for()
    elsewhere = open_view(fragment="#token=12&layer=1")
    elsewhere.show_kept(run, answer="Needle is 7421")
    elsewhere.page.locator("#kept .ckv-token-panel", has_text="token 12, layer 1").wait_for()
    assert evidence(elsewhere) == {}


def test_the_evidence_of_a_span_is_saved_by_layer(open_view):
    """Of a span that ends after the compressed prompt, the part inside it."""
    view = open_view(fragment="#span=255-304")
    run = small_run()
    value = run.value()
    value["variants"][1]["spec"] = "=HYPERLINK(1)"
    view.show_kept(run, variants=value["variants"])
    save = view.page.get_by_role("button", name="Evidence by layer as CSV")
    save.focus()
    with view.page.expect_download() as download:
        view.page.keyboard.press("Enter")
    assert download.value.suggested_filename == "evidence-255-299.csv"
    with download.value.path().open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["variant", "spec", "layer", "slots_held", "slots", "share", "share_by_chance"]
    assert [row[:3] for row in rows] == [
        [str(each["index"]), each["spec"].replace("=H", "'=H"), str(layer)]
        for each in value["variants"]
        for layer in run.evictable
    ]
    for mask, part in zip(run.masks, (rows[:5], rows[5:10], rows[10:]), strict=True):
        held = mask[list(run.evictable), :, 255:300].sum((1, 2))
        assert (held < 135).all()
        assert [row[3:5] for row in part] == [[str(count), "135"] for count in held]
        kept = RetainedSet.from_mask(mask)
        shares = evidence_shares(kept, (255, 300), run.evictable, {"window": 32})
        np.testing.assert_allclose([float(row[5]) for row in part], held / 135)
        chance = np.mean([float(row[6]) for row in part])
        assert chance == pytest.approx(shares.chance)


def test_the_evidence_of_a_span_is_saved_as_a_picture(open_view):
    view = open_view(fragment="#span=255-304")
    run = small_run()
    view.show_kept(run)
    files = {}
    for kind in ("SVG", "PNG"):
        with view.page.expect_download() as download:
            view.page.get_by_role("button", name=f"Evidence by layer as {kind}").click()
        assert download.value.suggested_filename == f"evidence-255-299.{kind.lower()}"
        files[kind] = download.value.path().read_bytes()
    picture = ElementTree.fromstring(files["SVG"])
    inner = picture.findall("{*}svg")
    variants = run.value()["variants"]
    assert len(inner) == len(variants)
    for mask, bars in zip(run.masks, inner, strict=True):
        drawn = [float(bar.get("height")) / 26 for bar in bars.findall("{*}rect")[::2]]
        held = mask[list(run.evictable), :, 255:300].mean((1, 2))
        np.testing.assert_allclose(drawn, held)
    told = [text.text for text in picture.findall("{*}text")]
    assert [text.partition(":")[0] for text in told[1:]] == [each["label"] for each in variants]
    assert files["PNG"].startswith(b"\x89PNG")
    width, height = struct.unpack(">II", files["PNG"][16:24])
    assert (width, height) == (2 * int(picture.get("width")), 2 * int(picture.get("height")))


def test_nothing_is_saved_of_a_span_that_is_read_after_eviction(open_view):
    view = open_view(fragment="#span=305-310")
    view.show_kept(small_run())
    view.page.locator("#kept .ckv-evidence", has_text="Read after eviction").wait_for()
    assert view.page.get_by_role("button", name="Evidence by layer as CSV").count() == 0


def test_the_first_difference_is_reached_from_the_evidence(open_view):
    view = open_view(fragment="#span=60-63")
    run = small_run()
    words = [f"word{i} " for i in range(900)]
    others = [*words[:700], "other ", *words[701:]]
    cards = [
        card(0, "Full cache", words, reference=True),
        card(1, "SnapKV", others, first_difference=700),
        card(2, "SnapKV + CriticalKV", words),
    ]
    view.send(generations={"cards": cards, "answer": ""})
    page = view.page
    page.locator("#generations .ckv-card").nth(2).wait_for()
    value = run.value()
    value["variants"][0] |= {"first_difference": 700, "finished": True}
    value["variants"][1] |= {"first_difference": None, "finished": True}
    value["variants"][2] |= {"first_difference": 3, "finished": True}
    view.show_kept(run, variants=value["variants"])
    cells = page.locator("#kept .ckv-evidence tbody tr td:last-child")
    cells.nth(2).wait_for()
    assert cells.all_inner_texts() == ["token 701", "none", "token 4"]
    assert cells.get_by_role("button").count() == 1  # the last one's text is not on the page
    page.get_by_role("button", name="Go to token 701 of SnapKV, the first that differs").focus()
    page.keyboard.press("Enter")
    text = page.locator("#generations .ckv-card").nth(1).locator(".ckv-text")
    assert text.evaluate("e => e === document.activeElement")
    mark = text.locator(".ckv-diff").bounding_box()
    frame = text.bounding_box()
    assert mark is not None
    assert frame is not None
    assert frame["y"] <= mark["y"] <= frame["y"] + frame["height"] - mark["height"]
    assert 0 <= mark["y"] <= 1000 - mark["height"]


def wait_until_zoomed(view: View) -> None:
    view.page.wait_for_function(
        "!/ 0.299 /.test(document.querySelector('#kept .ckv-where').textContent)"
    )


def test_keys_move_a_cursor_zoom_and_clear(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    page = view.page
    canvas = page.locator("#kept figure[data-variant='1'] .ckv-map-top")
    live = page.locator("#kept p[aria-live=polite]")
    canvas.focus()
    page.keyboard.press("Home")
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    kept = int(run.masks[0][1, :, 7].sum())
    assert "layer 1 · token 7 " in live.inner_text()
    assert f"kept by {kept} of 3 KV heads" in live.inner_text()
    page.keyboard.press("Enter")
    page.locator("#kept .ckv-token-panel", has_text="token 7, layer 1").wait_for()
    page.keyboard.press("+")
    page.locator("#kept .ckv-where", has_text="of 300").wait_for()
    wait_until_zoomed(view)
    labels = page.locator("#kept .ckv-map-top").evaluate_all("es => es.map(e => e.ariaLabel)")
    spans = {re.search(r"Positions (\d+ to \d+)", label).group(1) for label in labels}  # type: ignore[union-attr]
    assert len(spans) == 1
    page.keyboard.press("0")
    page.locator("#kept .ckv-where", has_text="positions 0\u2013299").wait_for()
    page.keyboard.press("Escape")
    page.locator("#kept .ckv-token-panel .ckv-hint", has_text="Click a token").wait_for()
    assert "token=" not in page.url
    page.locator("#kept .ckv-tokens").focus()
    page.keyboard.press("ArrowRight")
    slots = int(run.masks[0][list(run.evictable)][:, :, 1].sum())
    assert f"kept by {slots} of 15 slots" in live.inner_text()


def test_wheel_zooms_about_the_pointer_only_when_asked(open_view):
    view = open_view()
    view.show_kept(small_run())
    page = view.page
    page.locator("#kept figure[data-variant='1'] .ckv-map-top").hover(position={"x": 150, "y": 60})
    where = page.locator("#kept .ckv-where")
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(150)
    assert "positions 0\u2013299" in where.inner_text()
    page.locator("#kept figure[data-variant='1'] .ckv-map-top").hover(position={"x": 150, "y": 60})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    wait_until_zoomed(view)


def test_two_fingers_zoom_all_maps(open_view):
    view = open_view(width=430)
    view.show_kept(small_run())
    page = view.page
    canvas = page.locator("#kept figure[data-variant='1'] .ckv-map-top")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    touch = page.context.new_cdp_session(page)

    def fingers(kind: str, *gaps: int) -> None:
        y, middle = box["y"] + 60, box["x"] + box["width"] / 2
        points = [{"x": middle + gap, "y": y, "id": i} for i, gap in enumerate(gaps)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", -30)
    fingers("touchStart", -30, 30)
    fingers("touchMove", -60, 60)
    fingers("touchMove", -90, 90)
    fingers("touchEnd")
    wait_until_zoomed(view)
    assert page.locator("#kept .ckv-token-panel .ckv-hint", has_text="Click a token").is_visible()


def test_the_address_opens_the_same_spot(open_view):
    run = small_run()
    view = open_view(fragment="#token=61&variant=3&layer=2&span=60-63&other=kept")
    view.show_kept(run)
    page = view.page
    page.locator("#kept .ckv-token-panel", has_text="token 61, layer 2").wait_for()
    assert page.locator("#kept figure[data-variant='3'].ckv-chosen").count() == 1
    assert evidence(view)["3"] == expected_evidence(run, 3, 60, 64)
    page.evaluate("location.hash = '#token=999999&layer=77&span=5-2&variant=x'")
    page.evaluate("location.hash = '#token=12&layer=1'")
    page.locator("#kept .ckv-token-panel", has_text="token 12, layer 1").wait_for()


def test_a_failed_fetch_says_so_and_can_be_tried_again(open_view):
    view = open_view()
    run = small_run()
    view.lab.failing.add("small")
    view.send(kept=run.value())
    page = view.page
    again = page.get_by_role("button", name="Fetch the kept tokens again")
    again.wait_for()
    assert "could not be fetched: the server answered 503" in page.locator("#kept").inner_text()
    view.lab.failing.clear()
    again.click()
    page.wait_for_selector("#kept .ckv-maps")
    view.faults[:] = [line for line in view.faults if "503" not in line]


def test_wrong_length_of_bits_is_refused(open_view):
    view = open_view()
    view.send(kept={**small_run().value(), "kv_heads": 4})
    view.page.locator("#kept .ckv-empty", has_text="bytes instead of").wait_for()


def test_hostile_pieces_and_labels_stay_text(open_view):
    view = open_view(width=430)
    value = small_run().value()
    value["variants"][0]["label"] = HOSTILE
    view.show_kept(small_run(), variants=value["variants"])
    page = view.page
    assert page.locator("#kept [data-t='100']").text_content() == HOSTILE
    page.locator("#kept [data-t='100']").click()
    page.locator("#kept .ckv-token-panel q").wait_for()
    assert page.locator("#kept img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 430


def test_a_new_key_fetches_again_and_none_empties(open_view):
    view = open_view()
    view.show_kept(small_run())
    page = view.page
    with page.expect_response("**/data/small/1/retained"):
        view.send(kept={**small_run().value(), "key": "2"})
    page.wait_for_selector("#kept .ckv-maps")
    view.send(kept=None)
    page.locator("#kept .ckv-empty", has_text="appears here").wait_for()
    assert page.locator("#kept .ckv-maps").count() == 0
