"""Panels of points with intervals as an SVG for light, dark and colour-blind readers.

The same values give the same bytes. Every series has a shape and a name beside its colour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ui.looks.palette import DARK

WIDTH, LABELS, RIGHT, TOP, ROW, FOOT = 404, 206, 16, 30, 20, 44
HEIGHT = 230  # of a panel without rows
# Around (0, 0), 10 wide.
_SHAPES = {
    "square": "M-4.5-4.5h9v9h-9z",
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "triangle": "M0-5.5L5.5 4.5H-5.5z",
    "diamond": "M0-6L6 0L0 6L-6 0z",
    "down": "M0 5.5L5.5-4.5H-5.5z",
}
_STYLE = """text{font:12px system-ui,sans-serif;fill:#1f2933}.s{font-size:11px;fill:#52606d}
.b{font-weight:600}.bg{fill:#fff}.g{stroke:#d9dee5}.z{stroke:#52606d}"""
_STYLE_DARK = (
    "text{fill:#e6eaf0}.s{fill:#a9b4c2}.bg{fill:#12161d}.g{stroke:#313a47}.z{stroke:#a9b4c2}"
)


@dataclass(frozen=True, slots=True)
class Series:
    """One entry of a legend; `color` is the palette's for light pages."""

    name: str
    color: str
    shape: str
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """One point; `low` and `high` are ends along `along`, None where there is no interval."""

    series: int
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart.

    Attributes:
        x, y: first, last and step of an axis; y is not used where there are rows.
        rows: names from top to bottom; then the y of a dot is the place of its row.
        zero: whether to draw lines at 0.
    """

    title: str
    x: tuple[float, float, float]
    x_label: str
    dots: Sequence[Dot]
    y: tuple[float, float, float] = (0, 1, 1)
    y_label: str = ""
    rows: Sequence[str] = ()
    zero: bool = True

    @property
    def height(self) -> int:
        return ROW * len(self.rows) if self.rows else HEIGHT


def figure(title: str, series: Sequence[Series], panels: Sequence[Panel]) -> str:
    """The file's text: a legend, then two panels a row."""
    legend, below = _legend(series)
    parts = [*legend]
    for at in range(0, len(panels), 2):
        for column, panel in enumerate(panels[at : at + 2]):
            parts += [f'<g transform="translate({column * WIDTH} {below})">']
            parts += [*_panel(panel, series), "</g>"]
        below += TOP + FOOT + max(panel.height for panel in panels[at : at + 2])
    width = WIDTH * min(2, len(panels))
    colors = dict.fromkeys(each.color for each in series)
    twins = "".join(
        f'[stroke="{color}"]{{stroke:{DARK[color]}}}[fill="{color}"]{{fill:{DARK[color]}}}'
        for color in colors
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {below}" '
            f'width="{width}" height="{below}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}\n@media(prefers-color-scheme:dark){{{_STYLE_DARK}{twins}}}</style>",
            f'<rect class="bg" width="{width}" height="{below}"/>',
            *parts,
            "</svg>\n",
        )
    )


def _legend(series: Sequence[Series]) -> tuple[list[str], int]:
    """Its marks, two a row, and where it ends."""
    parts = []
    for at, each in enumerate(series):
        x, y = 20 + at % 2 * WIDTH, 18 + at // 2 * 18
        parts += [_mark(each, x, y), f'<text x="{x + 12}" y="{y + 4}">{escape(each.name)}</text>']
    return parts, 18 + (len(series) + 1) // 2 * 18


@dataclass(frozen=True, slots=True)
class _Scale:
    """Places of a panel's values in its group."""

    panel: Panel

    @property
    def left(self) -> int:
        return LABELS if self.panel.rows else 54

    @property
    def bottom(self) -> int:
        return TOP + self.panel.height

    def x(self, value: float) -> float:
        first, last, _ = self.panel.x
        return self.left + (value - first) / (last - first) * (WIDTH - RIGHT - self.left)

    def y(self, value: float) -> float:
        if self.panel.rows:
            return TOP + (value + 0.5) * ROW
        first, last, _ = self.panel.y
        return self.bottom - (value - first) / (last - first) * self.panel.height


def _panel(panel: Panel, series: Sequence[Series]) -> Iterator[str]:
    at = _Scale(panel)
    yield f'<text class="b" x="14" y="18">{escape(panel.title)}</text>'
    yield from _axes(panel, at)
    for dot in panel.dots:
        if dot.low is not None and dot.high is not None:
            ends = (
                (at.x(dot.low), at.y(dot.y), at.x(dot.high), at.y(dot.y))
                if panel.rows
                else (at.x(dot.x), at.y(dot.low), at.x(dot.x), at.y(dot.high))
            )
            yield _line(*ends, "", f' stroke="{series[dot.series].color}" stroke-width="1.5"')
    for dot in panel.dots:
        yield _mark(series[dot.series], at.x(dot.x), at.y(dot.y))


def _axes(panel: Panel, at: _Scale) -> Iterator[str]:
    right, middle = WIDTH - RIGHT, (TOP + at.bottom) / 2
    for tick in _ticks(*panel.x):
        kind = "z" if panel.zero and not tick else "g"
        yield _line(at.x(tick), TOP, at.x(tick), at.bottom, kind)
        yield _small(at.x(tick), at.bottom + 15, f"{tick:g}", "middle")
    for place, name in enumerate(panel.rows):
        anchored = f'x="{at.left - 10}" y="{at.y(place) + 4:.1f}" text-anchor="end"'
        yield f"<text {anchored}>{escape(name)}</text>"
    for tick in () if panel.rows else _ticks(*panel.y):
        kind = "z" if panel.zero and not tick else "g"
        yield _line(at.left, at.y(tick), right, at.y(tick), kind)
        yield _small(at.left - 6, at.y(tick) + 4, f"{tick:g}", "end")
    yield _small((at.left + right) / 2, at.bottom + 32, panel.x_label, "middle")
    if panel.y_label:
        yield _small(
            14, middle, panel.y_label, "middle", f'transform="rotate(-90 14 {middle:.1f})"'
        )


def _ticks(first: float, last: float, step: float) -> list[float]:
    return [round(first + at * step, 6) for at in range(round((last - first) / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, more: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{named}{more}/>'


def _small(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="s" {place} {more}>{escape(text)}</text>'.replace(" >", ">")


def _mark(series: Series, x: float, y: float) -> str:
    """An open mark is filled with the ground, so that lines end at it."""
    fill = 'class="bg"' if series.is_open else f'fill="{series.color}"'
    path = _SHAPES[series.shape]
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path d="{path}" {place} {fill} stroke="{series.color}" stroke-width="1.5"/>'
