"""Kept tokens in a real browser: every number against numpy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ckv_core.results.records import RetainedSet
from tests.ui.components.components_lab import (
    evidence,
    expected_evidence,
    large_run,
    small_run,
)
from ui.components.modules import joined
from ui.looks.palette import DENSITY_STOPS

DATA = "ui/components/kept_tokens/data.js"
DATA_SCRIPT = f'{joined([DATA])}\nreturn MODULES["{DATA}"];'


@pytest.mark.parametrize(
    ("shape", "seed"), [((1, 1, 1), 0), ((2, 3, 8), 1), ((3, 2, 61), 2), ((4, 5, 515), 3)]
)
def test_bits_are_counted_as_numpy_counts_them(browser, shape, seed):
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < rng.random()
    layers, heads, positions = shape
    ranges = np.sort(rng.integers(0, positions + 1, (20, 2)), axis=1).tolist()
    page = browser.new_page()
    got = page.evaluate(
        """([script, bits, layers, heads, positions, ranges]) => {
          const {KeptSet} = new Function(script)();
          const evictable = Array.from({length: layers}, (_, i) => i);
          const kept = new KeptSet(Uint8Array.from(bits), {layers, heads, positions, evictable});
          kept.count();
          const at = (n) => Array.from({length: n}, (_, i) => i);
          return {
            cells: at(layers).map((l) => at(positions).map((p) => kept.headsKeeping(l, p))),
            slots: at(positions).map((p) => kept.slotsKeeping(p)),
            share: kept.share(),
            sums: ranges.map(([a, b]) => at(layers).map((l) => kept.layerSum(l, a, b))),
            heads: ranges.map(([a, b]) => at(heads).map((h) => kept.headSum(layers - 1, h, a, b))),
            spans: ranges.filter(([a, b]) => b > a).map(([a, b]) => kept.evidence(a, b)),
          };
        }""",
        [DATA_SCRIPT, list(RetainedSet.from_mask(mask).bits), *shape, ranges],
    )
    page.close()
    assert np.array_equal(got["cells"], mask.sum(1))
    assert np.array_equal(got["slots"], mask.sum((0, 1)))
    assert got["share"] == pytest.approx(mask.mean())
    for (first, end), sums, per_head in zip(ranges, got["sums"], got["heads"], strict=True):
        assert sums == mask[:, :, first:end].sum((1, 2)).tolist()
        assert per_head == mask[-1, :, first:end].sum(1).tolist()
    spans = [(a, b) for a, b in ranges if b > a]
    for (first, end), found in zip(spans, got["spans"], strict=True):
        assert found["slots"] == layers * heads
        assert found["whole"] == mask[:, :, first:end].all(2).sum()
        assert found["mean"] == pytest.approx(mask[:, :, first:end].mean())


def ramp_color(share: float) -> NDArray[np.float64]:
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in DENSITY_STOPS])
    at = round(np.sqrt(share) * 255) / 255 * (len(stops) - 1)
    return np.array([np.interp(at, range(len(stops)), stops[:, i]) for i in range(3)])


def test_heat_map_paints_the_share_of_heads(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    shares = run.masks[1].mean(1)
    rng = np.random.default_rng(0)
    cells = [(int(rng.choice(run.evictable)), int(p)) for p in rng.choice(300, 60, replace=False)]
    pixels = view.page.evaluate(
        """(cells) => {
          const canvas = document.querySelectorAll('#kept .ckv-map-base')[1];
          const pen = canvas.getContext('2d');
          const ratio = devicePixelRatio, box = canvas.getBoundingClientRect();
          const w = box.width - 36, h = box.height - 31;
          return cells.map(([layer, position]) => [...pen.getImageData(
            (30 + (position + 0.5) / 300 * w) * ratio, (9 + (layer + 0.5) / 6 * h) * ratio, 1, 1
          ).data].slice(0, 3));
        }""",
        cells,
    )
    wrong = [
        cell
        for cell, pixel in zip(cells, pixels, strict=True)
        if np.abs(np.array(pixel) - ramp_color(shares[cell])).max() > 2
    ]
    assert wrong == []


def test_text_shades_count_evictable_slots(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    view.page.get_by_label("Variant that shades the text").select_option("2")
    view.page.locator("#kept figure[data-variant='3'].ckv-chosen").wait_for()
    titles = view.page.eval_on_selector_all(
        "#kept .ckv-tokens .t", "es => es.map(e => [+e.dataset.t, e.title, e.className])"
    )
    slots = run.masks[2][list(run.evictable)].sum((0, 1))
    assert len(titles) == 320
    for token, title, name in titles:
        if token >= 300:
            assert "read after eviction" in title
            continue
        assert f"kept by {slots[token]} of 15 slots" in title
        assert ("t0" in name.split()) == (slots[token] == 0)
    assert slots[151] == 0


def test_what_is_always_kept_is_joined_and_stays_inside(browser):
    page = browser.new_page()
    found = page.evaluate(
        """(script) => {
          const {alwaysKept} = new Function(script)();
          return [
            alwaysKept(20, {}),
            alwaysKept(20, {sinks: 4, window: 5, protected: [[9, 12], [3, 6], [14, 18]]}),
            alwaysKept(20, {sinks: 30, window: 99}),
          ];
        }""",
        DATA_SCRIPT,
    )
    page.close()
    assert found == [[], [[0, 6], [9, 12], [14, 20]], [[0, 20]]]


def test_search_selects_the_span_and_shows_its_evidence(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    page = view.page
    box = page.get_by_role("searchbox", name="Search the prompt")
    box.fill("the NEEDLE is 74")
    page.locator("#kept .ckv-count", has_text="1 of 1").wait_for()
    page.locator("#kept .ckv-evidence tbody tr").first.wait_for()
    found = evidence(view)
    assert found == {str(v): expected_evidence(run, v, 60, 64) for v in (1, 2, 3)}
    assert "span=60-63" in page.url
    box.fill("needle")
    page.locator("#kept .ckv-count", has_text="1 of 2").wait_for()
    page.get_by_role("button", name="Next match").click()
    page.locator("#kept .ckv-count", has_text="2 of 2").wait_for()
    assert evidence(view)["1"] == expected_evidence(run, 1, 200, 201)
    page.get_by_role("button", name="Next match").click()
    page.locator("#kept .ckv-count", has_text="1 of 2").wait_for()
    box.fill("no such words")
    page.locator("#kept .ckv-count", has_text="no match").wait_for()


def test_a_click_in_a_map_picks_token_layer_and_variant(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    page = view.page
    canvas = page.locator("#kept figure[data-variant='2'] .ckv-map-top")
    box = canvas.bounding_box()
    assert box is not None
    x = 30 + (123 + 0.5) / 300 * (box["width"] - 36)
    y = 9 + 4.5 / 6 * (box["height"] - 31)
    canvas.hover(position={"x": x, "y": y})
    tip = page.locator("#kept figure[data-variant='2'] .ckv-map-tip")
    tip.wait_for()
    kept = int(run.masks[1][4, :, 123].sum())
    assert "layer 4 · token 123" in tip.inner_text()
    assert f"kept by {kept} of 3 KV heads" in tip.inner_text()
    canvas.click(position={"x": x, "y": y})
    page.locator("#kept .ckv-token-panel", has_text="token 123, layer 4 framed").wait_for()
    assert page.url.endswith("#token=123&variant=2&layer=4")
    off_centre = """node => {
      const [at, box] = [node, node.closest(".ckv-tokens")].map((e) => e.getBoundingClientRect());
      return Math.abs((at.top + at.bottom - box.top - box.bottom) / 2);
    }"""
    assert page.locator("#kept .ckv-tokens [data-t='123']").evaluate(off_centre) < 30
    slots = [int(mask[list(run.evictable)][:, :, 123].sum()) for mask in run.masks]
    captions = page.locator("#kept .ckv-slots figcaption .ckv-num").all_inner_texts()
    assert captions == [f"{count} / 15" for count in slots]
    assert page.get_by_label("Layer of the heads map").input_value() == "4"
    assert page.get_by_label("Variant that shades the text").input_value() == "1"


def test_difference_and_share_table_agree_with_numpy(open_view):
    view = open_view()
    run = small_run()
    view.show_kept(run)
    page = view.page
    page.get_by_label("First variant").select_option("2")
    page.get_by_label("Second variant").select_option("1")
    canvas = page.locator("#kept .ckv-difference .ckv-map-top")
    page.locator('#kept .ckv-difference [aria-label*="AdaKV minus SnapKV + CriticalKV"]').wait_for()
    canvas.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    one, two = (int(run.masks[v][0, :, 10].sum()) for v in (2, 1))
    live = page.locator("#kept p[aria-live=polite]").inner_text()
    assert f"KV heads of 3: AdaKV {one}, SnapKV + CriticalKV {two}" in live
    page.locator("#kept summary").click()
    rows = page.locator("#kept .ckv-share tbody tr").all_inner_texts()
    assert rows[3].split("\t") == ["3 (not evicted)", "100%", "100%", "100%"]
    shares = [mask[5].mean() * 100 for mask in run.masks]
    expected = [f"{s:.1f}%" if s < 9.95 else f"{s:.0f}%" for s in shares]
    assert rows[5].split("\t") == ["5", *expected]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_sign_of_a_difference_survives_a_grey_print(open_view, theme):
    """Cells where the second variant keeps more have a line through their middle, others none."""
    view, run = open_view(theme=theme), small_run()
    view.show_kept(run)
    gaps = run.masks[1].sum(1).astype(int) - run.masks[0].sum(1)
    cells = [[int(layer), int(at)] for layer in run.evictable for at in range(0, 260, 7)]
    contrast = view.page.evaluate(
        """(cells) => {
          const canvas = document.querySelector('#kept .ckv-difference .ckv-map-base');
          const pen = canvas.getContext('2d');
          const ratio = devicePixelRatio, box = canvas.getBoundingClientRect();
          const w = box.width - 36, h = box.height - 31;
          const grey = (x, y) => {
            const [r, g, b] = pen.getImageData(x * ratio, y * ratio, 1, 1).data;
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          return cells.map(([layer, position]) => {
            const x = 30 + (position + 0.5) / 300 * w;
            const [middle, off] = [0.5, 0.25].map((part) => Math.round(9 + (layer + part) / 6 * h));
            return Math.abs(grey(x, middle) - grey(x, off));
          });
        }""",
        cells,
    )
    signs = np.array([gaps[layer, at] for layer, at in cells])
    assert (signs < 0).sum() > 5
    assert np.all(np.array(contrast)[signs < 0] > 30)
    assert np.all(np.array(contrast)[signs >= 0] == 0)


def test_views_begin_with_the_first_critical_variant_against_its_base(open_view):
    view = open_view()
    view.show_kept(small_run())
    label = '#kept .ckv-difference [aria-label*="SnapKV + CriticalKV minus SnapKV"]'
    view.page.locator(label).wait_for()


@pytest.mark.slow
def test_of_128k_positions_only_what_is_seen_becomes_words(open_view):
    view = open_view()
    view.show_kept(large_run())
    assert "of 131,072" in view.page.locator("#kept .ckv-where").inner_text()
    assert 0 < view.page.locator("#kept .t").count() < 4000
    view.page.get_by_role("searchbox", name="Search the prompt").fill("rare names")
    view.page.locator("#kept .ckv-count", has_text="1 of").wait_for()
