"""How a variant looks everywhere: colour, mark and dash; and the colour maps of charts and maps.

A method has one colour and one shape on every page, and a colour for each theme. CriticalKV opens
the shape, breaks the line and has a colour of its own for each of its readings. Grey is the full
cache's.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ckv_core.methods import METHODS
from ckv_core.records.external_selection import OWN
from ckv_core.records.identity import identify
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import VariantSpec

Reading = Literal["plain", "printed", "pooled", "auto"]

# In the light and in the dark: at least 3.4:1 on the card. Any two of the first seven are 22 units
# of CIELAB apart with any kind of colour blindness, any two of all are 16.
_HUES = {
    "grey": ("#5f6978", "#8d97a7"),
    "blue": ("#4d6bea", "#3ba3ff"),
    "brown": ("#6e2c10", "#cf5142"),
    "pink": ("#c566c4", "#fbd2f7"),
    "green": ("#0c9d62", "#2fdfa5"),
    "plum": ("#3d1a68", "#9452ad"),
    "olive": ("#948c08", "#e3a84a"),
    "violet": ("#7500fc", "#6c51fc"),
    "crimson": ("#90003f", "#ab5163"),
    "moss": ("#3f7e2d", "#a2f300"),
}
_COLORS = {name: light for name, (light, _) in _HUES.items()}
_METHODS: dict[str, tuple[str, str]] = {
    "full": (_COLORS["grey"], "circle"),
    "streaming_llm": (_COLORS["olive"], "triangle-down"),
    "snapkv": (_COLORS["blue"], "square"),
    "pyramidkv": (_COLORS["violet"], "triangle-up"),
    "adakv": (_COLORS["green"], "diamond"),
    "kvzip": (_COLORS["plum"], "hexagram"),
    OWN: (_COLORS["moss"], "cross"),
}
_READINGS: dict[Reading, str] = {
    "printed": _COLORS["brown"],
    "pooled": _COLORS["pink"],
    "auto": _COLORS["crimson"],
}
# Which of three shades of a reading's colour: SnapKV's as it is, other methods' apart from it.
_READING_SHADES = {"snapkv": 0, "adakv": 1}
# For methods that are added, and for what is no method: bounds, oracles, bars of an ablation.
SPARE: tuple[tuple[str, str], ...] = (
    (_COLORS["crimson"], "pentagon"),
    (_COLORS["brown"], "star-square"),
    (_COLORS["pink"], "star"),
    (_COLORS["moss"], "hexagon"),
)
# Further rounds through the colours: other shapes, and other lines where all scores are plain.
_SPARE_SHAPES = (*(shape for _, shape in SPARE), "star-triangle-up")
_SPARE_DASHES = ("solid", "longdash", "longdashdot", "10px,2px", "2px,6px")
WARN_COLOR = "#c95c00"
# The second, third, ... variant of one method and reading in a run.
_REPEATS = ("triangle-right", "x", "triangle-left", "star-diamond", "hexagon2")
# Of the darkest and the lightest shade, in the light and in the dark: ends of what has contrast.
_LUMINANCES = ((0.05, 0.24), (0.17, 0.55))

# Plotly's names. Filled, open, open with a dot, filled with a hole.
_MARKS = {"plain": "", "printed": "-open", "pooled": "-open-dot", "auto": "-dot"}
_DASHES = {"plain": "solid", "printed": "dash", "pooled": "dashdot", "auto": "dot"}
_PATTERNS = {"plain": "", "printed": "/", "pooled": "x", "auto": "."}

# Plotly's name of the scale of shares: perceptually uniform, safe for colour-blind readers.
DENSITY_SCALE = "Cividis"
_SCALE = re.compile(r'^(?:export )?const (\w+_STOPS\w*) = "([^"]+)"', re.MULTILINE)
_MARKS_JS = Path(__file__).resolve().parents[2] / "assets" / "scripts" / "marks.js"
# Colours of maps and charts, `DIVERGING_STOPS` and others, where scripts have them.
STOPS = {name: tuple(text.split()) for name, text in _SCALE.findall(_MARKS_JS.read_text("utf-8"))}


@dataclass(frozen=True, slots=True)
class Look:
    """Of one variant or curve: `#rrggbb`, and Plotly's names of mark, dash and bar pattern.

    `color` is the one in the light, `DARK` has its twin.
    """

    color: str
    symbol: str
    dash: str = "solid"
    pattern: str = ""

    @property
    def value(self) -> dict[str, str]:
        dark = DARK.get(self.color, self.color)
        return {"color": self.color, "dark": dark, "symbol": self.symbol, "dash": self.dash}

    def line(self) -> dict[str, Any]:
        return {"color": self.color, "dash": self.dash, "width": 2}

    def marker(self, size: int) -> dict[str, Any]:
        is_open = "-open" in self.symbol
        edge: dict[str, Any] = {"width": 2 if is_open else int("-dot" in self.symbol)}
        edge |= {} if is_open else {"color": "#ffffff"}
        return {"color": self.color, "symbol": self.symbol, "size": size, "line": edge}


FULL_LOOK = Look(*_METHODS["full"])


def looks_of(variants: Iterable[VariantResult]) -> list[Look]:
    """One look per variant; a further variant of one method and reading has a shape of its own."""
    met: Counter[tuple[str, Reading]] = Counter()
    looks = []
    for variant in variants:
        kind = (variant.method, _reading_of(variant))
        looks.append(_look(*kind, repeat=met[kind]))
        met[kind] += 1
    return looks


def looks_of_specs(specs: Iterable[str]) -> list[Look]:
    """As `looks_of`, of variants that have not run."""
    return looks_of(VariantResult.of(VariantSpec.parse(spec)) for spec in specs)


def look_of(spec: str) -> Look:
    return looks_of_specs([spec])[0]


def bar_marker(color: str | list[str], pattern: str | list[str]) -> dict[str, Any]:
    """Plotly's marker of one bar or of several, its pattern over its colour."""
    more = {"fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.7, "size": 6}
    if color and not isinstance(color, str):
        more["bgcolor"] = color[0]  # each bar has its own; Plotly would take the list for a colour
    return {"color": color, "pattern": {"shape": pattern, "solidity": 0.2, **more}}


def _reading_of(variant: VariantResult) -> Reading:
    settings = identify(variant).settings
    if not variant.critical:
        return "plain"
    if settings.name.endswith("+critical_auto"):
        return "auto"  # it finds its own
    return "pooled" if dict(settings.parameters).get("stage2") == "pooled" else "printed"


def _look(method: str, reading: Reading, *, repeat: int) -> Look:
    color, shape, plain = _base_look(method)
    if reading != "plain":
        color = _shade(_READINGS[reading], _READING_SHADES.get(method, 2))
    if repeat:
        color, shape = _shade(color, repeat), _REPEATS[(repeat - 1) % len(_REPEATS)]
    dash = plain if reading == "plain" else _DASHES[reading]
    return Look(color, shape + _MARKS[reading], dash, _PATTERNS[reading])


def _base_look(method: str) -> tuple[str, str, str]:
    """Colour, shape and line of a method; all differ for the five times four that are added."""
    if method in _METHODS:
        return (*_METHODS[method], _DASHES["plain"])
    added = [each.name for each in METHODS if each.name not in _METHODS]
    at = added.index(method) if method in added else zlib.crc32(method.encode())
    turn, place = divmod(at % (len(SPARE) * len(_SPARE_SHAPES)), len(SPARE))
    shape = _SPARE_SHAPES[(place + turn) % len(_SPARE_SHAPES)]
    return SPARE[place][0], shape, _SPARE_DASHES[turn]


def _shade(color: str, step: int) -> str:
    """The next shade but `step` of the three that a colour in the light has."""
    shades = next(shades for shades in _SHADES if color in shades)
    return shades[(shades.index(color) + step) % len(shades)]


def _shades(color: str, ends: tuple[float, float]) -> list[str]:
    """Three of one hue: as it is, at the end that is farther from it, and in between."""
    linear = (np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255) ** 2.2
    own = float(linear @ (0.2126, 0.7152, 0.0722))
    shades = [color]
    far = max(ends, key=lambda end: abs(end - own))
    for wanted in (far, (far * own) ** 0.5):
        if wanted > own:
            shade = linear + (1 - linear) * (wanted - own) / (1 - own)
        else:
            shade = linear * wanted / own
        shades.append("#" + "".join(f"{round(255 * part):02x}" for part in shade ** (1 / 2.2)))
    return shades


_SHADES = [_shades(light, _LUMINANCES[0]) for light, _ in _HUES.values()]
# A colour in the light -> its twin in the dark.
DARK = {
    light: dark
    for shades, (_, twin) in zip(_SHADES, _HUES.values(), strict=True)
    for light, dark in zip(shades, _shades(twin, _LUMINANCES[1]), strict=True)
}
