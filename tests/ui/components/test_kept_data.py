"""What the page counts out of the bits that it fetches, as numpy counts it."""

import numpy as np
import pytest

from ckv_core.records.records import RetainedSet
from tests.ui.looks.test_palette import CARDS, contrast, lab
from ui.components.modules import joined
from ui.looks.palette import DARK

DATA, RAMP = (f"ui/components/kept_tokens/{name}.js" for name in ("data", "ramp"))
DATA_SCRIPT = f'{joined([DATA])}\nreturn MODULES["{DATA}"];'
RAMP_SCRIPT = f'{joined([RAMP])}\nreturn MODULES["{RAMP}"];'


@pytest.mark.parametrize(
    ("shape", "seed"), [((1, 1, 1), 0), ((2, 3, 8), 1), ((3, 2, 61), 2), ((4, 5, 515), 3)]
)
def test_bits_are_counted_as_numpy_counts_them(page, shape, seed):
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < rng.random()
    layers, heads, positions = shape
    ranges = np.sort(rng.integers(0, positions + 1, (20, 2)), axis=1).tolist()
    got = page.evaluate(
        """([script, bits, layers, heads, positions, ranges]) => {
          const {KeptSet} = new Function(script)();
          const evictable = Array.from({length: layers}, (_, i) => i);
          const kept = new KeptSet(Uint8Array.from(bits), {layers, heads, positions, evictable});
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


def test_what_is_always_kept_is_joined_and_stays_inside(page):
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
    assert found == [[], [[0, 6], [9, 12], [14, 20]], [[0, 20]]]


@pytest.mark.parametrize("theme", range(2), ids=["light", "dark"])
def test_a_ramp_of_each_hue_leaves_the_ground_step_by_step_and_shades_a_readable_text(page, theme):
    """The more is kept the farther from the ground, in lightness; ink is read on all of it."""
    ground, ink = CARDS[theme], ("#14181f", "#eef1f4")[theme]
    hues = [(light, dark)[theme] for light, dark in DARK.items()]
    found = page.evaluate(
        """([script, ground, ink, hues]) => {
          const {rampOf, shadeColor, DEEPEST} = new Function(script)();
          const part = (pixel, by) => ((pixel >> by) & 255).toString(16).padStart(2, "0");
          const hex = (pixel) => `#${[0, 8, 16].map((by) => part(pixel, by)).join("")}`;
          return hues.map((hue) => ({
            ramp: Array.from(rampOf([ground, hue]), hex),
            shade: shadeColor(hue, ground, ink, DEEPEST).match(/\\d+/g).map(Number),
            deepest: DEEPEST,
          }));
        }""",
        [RAMP_SCRIPT, ground, ink, hues],
    )
    assert len(found) > 20
    for hue, each in zip(hues, found, strict=True):
        away = np.array([lab(step)[0] for step in each["ramp"][::15]]) - lab(ground)[0]
        assert np.all(np.diff(np.abs(away)) > 0), hue
        own = np.array([int(ground[at : at + 2], 16) for at in (1, 3, 5)])
        darkest = own + (np.array(each["shade"]) - own) * each["deepest"]
        assert contrast("#" + "".join(f"{round(part):02x}" for part in darkest), ink) >= 4.5, hue
