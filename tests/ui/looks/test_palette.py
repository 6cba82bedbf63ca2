"""A method has one look everywhere; every look and both signs are told apart, in grey too."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import VariantSpec
from tests.factories.runs import variant
from ui.looks.palette import (
    _HUES,
    _METHODS,
    _REPEATS,
    DARK,
    STOPS,
    WARN_COLOR,
    looks_of,
)
from ui.looks.theme import ASSETS

APP_CSS = (ASSETS / "app.css").read_text("utf-8")
CARDS = ["#ffffff", "#14181d"]
# What is left of linear RGB without the long, the middle and the short cones (Machado et al. 2009,
# severity 1), and with all of them.
VISIONS = {
    "all": np.eye(3),
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
READINGS = ["snapkv", "snapkv+critical", "snapkv+critical:stage2=pooled", "snapkv+critical_auto"]


def linear(color: str) -> np.ndarray:
    parts = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, two: str) -> float:
    dark, light = sorted(linear(color) @ (0.2126, 0.7152, 0.0722) for color in (one, two))
    return (light + 0.05) / (dark + 0.05)


def lab(color: str, vision: object = VISIONS["all"]) -> np.ndarray:
    """CIELAB of a colour as somebody sees it."""
    to_xyz = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    seen = np.clip(np.array(vision) @ linear(color), 0, 1)
    x, y, z = np.cbrt(np.maximum(to_xyz @ seen / np.sum(to_xyz, axis=1), 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def run_of(*specs: str) -> list[VariantResult]:
    return [variant(spec) for spec in specs]


@pytest.mark.parametrize("theme", range(2), ids=["light", "dark"])
def test_every_colour_stands_out_from_the_card(theme):
    for hue in _HUES.values():
        assert contrast(hue[theme], CARDS[theme]) >= 3.4, hue
    specs = [f"{each.name}{end}" for each in METHODS for end in ("", "+critical", "+critical_auto")]
    for spec in (spec for spec in specs if applies(spec)):
        for look in looks_of(run_of(*[spec] * 4)):
            assert contrast((look.color, DARK[look.color])[theme], CARDS[theme]) >= 2.99, spec
    assert contrast(WARN_COLOR, CARDS[theme]) >= 2.99


def applies(spec: str) -> bool:
    try:
        return bool(VariantSpec.parse(spec))
    except ConfigError:
        return False


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", range(2), ids=["light", "dark"])
def test_hues_are_told_apart_with_any_eyes(vision, theme):
    seen = np.array([lab(hue[theme], VISIONS[vision]) for hue in _HUES.values()])
    gaps = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + 99 * np.eye(len(seen))
    # The drawings say 24 and 22, to the unit: SnapKV's and AdaKV's.
    assert gaps[:7, :7].min() > (23.9, 22)[theme]
    assert gaps.min() > 16


def test_methods_are_told_apart_by_shape_without_colour():
    shapes = [shape for _, shape in _METHODS.values()]
    assert len({*shapes, *_REPEATS}) == len(shapes) + len(_REPEATS)


def test_a_method_keeps_its_look_in_every_company_and_at_every_budget():
    (alone,) = looks_of(run_of("adakv:budget=64"))
    assert alone == looks_of(run_of("full", "snapkv", "adakv:budget=10%"))[2]
    assert alone == looks_of(run_of("adakv", "adakv+critical"))[0]


def test_the_readings_of_criticalkv_differ_in_colour_mark_dash_and_pattern():
    looks = looks_of(run_of(*READINGS))
    assert len({look.color for look in looks}) == len(READINGS)
    adakv = looks_of(run_of(*(spec.replace("snapkv", "adakv") for spec in READINGS)))
    assert not {look.color for look in adakv} & {look.color for look in looks}
    for parts in ([x.symbol for x in looks], [x.dash for x in looks], [x.pattern for x in looks]):
        assert len(set(parts)) == len(READINGS)
    by_preset, plain = looks_of(run_of("snapkv+critical:preset=kvpress", "snapkv"))
    assert (by_preset.dash, plain.dash) == (looks[2].dash, "solid")
    alphas = looks_of(run_of(*(f"snapkv+critical:alpha=0.{n}" for n in range(6))))
    assert len({look.symbol for look in alphas}) == 6
    assert {look.dash for look in alphas} == {"dash"}


def test_twenty_added_methods_each_have_a_mark_and_a_line_of_their_own(monkeypatch):
    for number in range(20):
        made_up = replace(METHODS.get("snapkv"), name=f"m{number}")
        monkeypatch.setitem(METHODS._methods, made_up.name, made_up)
    names = [method.name for method in METHODS]
    added = [name for name in names if name not in _METHODS]
    names = [name for name in names if name in _METHODS or name in added[:20]]
    looks = looks_of(run_of(*names))
    assert len({(look.color, look.symbol) for look in looks}) == len(names)
    assert len({(look.color, look.dash) for look in looks}) == len(names)
    known = (ASSETS / "scripts/marks.js").read_text(encoding="utf-8")
    assert all(re.search(rf'^ +"?{look.symbol}"?: "M', known, re.MULTILINE) for look in looks)
    readings = looks_of(run_of("m9", "m9+critical", "m9+critical_auto"))
    assert len({look.dash for look in readings}) == 3


@pytest.mark.parametrize(
    ("name", "ground"), [("DIVERGING_STOPS", "#ffffff"), ("DIVERGING_STOPS_DARK", CARDS[1])]
)
def test_differences_fade_evenly_into_the_ground_and_the_sides_are_told_apart(name, ground):
    stops = STOPS[name]
    lightness = np.array([lab(stop)[0] for stop in stops])
    steps = np.diff(lightness)
    assert np.ptp(np.abs(steps)) < 2
    np.testing.assert_allclose(lightness, lightness[::-1], atol=1.5)
    away = np.abs(lightness - lab(ground)[0])
    assert away.argmin() == len(stops) // 2
    assert away.min() < 8
    for vision in VISIONS.values():
        for at in (0, 1, 2):
            assert np.linalg.norm(lab(stops[at], vision) - lab(stops[-1 - at], vision)) > 30


@pytest.mark.parametrize("theme", range(2), ids=["light", "dark"])
def test_words_and_controls_of_the_frame_stand_out_from_every_ground(theme):
    blocks = re.findall(r"^(?::root|\.dark) \{(.+?)^\}", APP_CSS, re.MULTILINE | re.DOTALL)
    colors = dict(re.findall(r"--ckv-([\w-]+): (#\w{6});", blocks[theme]))
    for ground in ("bg", "surface", "sunken", "hover"):
        for words in ("ink", "ink-2", "ink-3", "good", "bad", "cut"):
            assert contrast(colors[words], colors[ground]) >= 4.5, (words, ground)
        for line in ("control", "focus"):
            assert contrast(colors[line], colors[ground]) >= 3, (line, ground)
    for outcome in ("good", "bad", "cut"):
        assert contrast(colors[outcome], colors[f"{outcome}-bg"]) >= 4.5
    assert contrast(colors["primary"], colors["on-primary"]) >= 7
