"""Charts of the one table of points: a metric against budget, memory or perturbation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ckv_core.experiment.points import BUDGET_UNITS, POINT_METRICS, Curve, Points, Row, varied_units
from ckv_core.experiment.regimes import marked_name
from ckv_core.experiment.rounding import short
from ckv_core.experiment.sentences import budget_words, spanned
from ckv_core.experiment.stats import Interval
from ckv_core.experiment.sweep import ORACLES
from ckv_core.methods.parameters import Budget
from ckv_core.records.metrics import Metric
from ui.charts.layers import FLOOR_LOOK, ORACLE_LOOKS
from ui.charts.layout import (
    Chart,
    Choices,
    Control,
    Source,
    budget_axis,
    budget_line,
    empty_figure,
    new_figure,
)
from ui.looks.palette import FULL_LOOK, Look
from ui.tables.points import looks_by_place


@dataclass(frozen=True, slots=True)
class _Axis:
    """What a metric is drawn against: its name, and its value of a row at a budget."""

    title: str
    place: Callable[[Budget, Row], float | None]
    options: Callable[[Row], dict[str, Any]] = lambda _: {}


def _share(_: Budget, row: Row) -> float | None:
    return row.memory[0] / row.memory[1] if row.memory else None


def _head(_: Budget, row: Row) -> float | None:
    mean = row.mean("head")
    return mean.mean if mean else None


_AXES: dict[str, _Axis] = {
    "budget": _Axis("budget", lambda budget, _: budget.amount),
    "memory": _Axis("cache bytes, share of the full cache's", _share),
    "head": _Axis("mean head L1, first decoding step", _head),
}


def points_figure(
    points: Points, metric: Metric, unit: str, against: str = "budget", oracles: str = ""
) -> go.Figure:
    """Mean of one metric at every budget, one line per method and alpha; the full cache dotted.

    Definition: docs/reference/definitions.md for each metric. A point is the mean over the samples
    at its budget (the paper's figures 1 and 3c), bars are its 95 % interval; no bar where n is too
    small. The axis of budgets is logarithmic. Oracles, dashed, choose by the true decode
    attention, which no method sees: they are limits, not rivals. n is in the subtitle.
    """
    title, axis = (
        f"{metric.mean_label} against {_AXES[against].title.split(',')[0]}",
        _AXES[against],
    )
    if unit not in varied_units(points.curves, metric.key):
        return empty_figure(title, "Not measured at two budgets of this unit.")
    drawn = [
        (curve, known)
        for curve in points.curves
        if curve.unit == unit and (known := _known(curve, metric.key, axis))
    ]
    limits = [*_oracles(points, oracles)] if metric.key == "head" and against == "budget" else []
    shown = new_figure(
        title, _subtitle(points, metric, drawn), legend_rows=len(drawn) + len(limits)
    )
    looks, marks = looks_by_place(points), points.marks
    scale, unit_after = (100, " %") if metric.is_share else (1, "")
    for curve, known in drawn:
        name = marked_name(curve.first.name, marks[curve.first.place])
        look = looks[curve.first.place]
        places, requested, means = zip(*known, strict=True)
        line = budget_line(
            look,
            name,
            places,
            [scale * mean.mean for mean in means],
            customdata=[[each, mean.n] for each, mean in zip(requested, means, strict=True)],
            hovertemplate=f"%{{customdata[0]}}: %{{y:.4g}}{unit_after}, n = %{{customdata[1]}}",
            error_y=interval_bars(means, look.color, scale),
        )
        shown.add_trace(line)
    shown.add_traces(limits)
    _add_reference(shown, points, metric, scale)
    if against == "budget":
        budget_axis(shown, [x for _, known in drawn for x, _, _ in known], BUDGET_UNITS[unit])
    else:
        shown.update_xaxes(title_text=axis.title, rangemode="tozero")
    shown.update_yaxes(title_text=metric.unit_name, rangemode="tozero", ticksuffix=unit_after)
    return shown


def points_chart(name: str, csv: str, read: Callable[[Source], Points]) -> Chart[Source]:
    """The chart of whatever is read as points; metrics, units and axes are its choices."""

    def draw(source: Source, chosen: Choices) -> go.Figure:
        points, metric = read(source), POINT_METRICS[chosen["quantity"]]
        given = (chosen["unit"], chosen["against"], chosen.get("oracles", ""))
        return points_figure(points, metric, *given)

    return Chart(
        name=name,
        title="Against the budget",
        csv=csv,
        controls=lambda source: _controls(read(source)),
        has_data=lambda source: next(_offered(read(source)), None) is not None,
        draw=draw,
    )


POINTS_CHART: Chart[Points] = points_chart("budget", "means", lambda own: own)


def interval_bars(intervals: Sequence[Interval], color: str, scale: int) -> dict[str, Any] | None:
    """Plotly's error bars; none at a mean without an interval or of one sample."""
    ends = scale * np.array(
        [
            (i.mean, i.low, i.high) if i.low is not None and i.n > 1 else (np.nan,) * 3
            for i in intervals
        ],
        np.float64,
    )
    if np.isnan(ends).all():
        return None
    mean, low, high = ends.T
    return {
        "type": "data",
        "symmetric": False,
        "array": high - mean,
        "arrayminus": mean - low,
        "color": color,
        "thickness": 2,
    }


def _known(curve: Curve, key: str, axis: _Axis) -> list[tuple[float, str, Interval]]:
    """Place on the axis, the budget in words and the mean, of each row that has both."""
    return [
        (x, _requested(row), mean)
        for budget, row in curve.rows
        if (mean := row.mean(key)) and (x := axis.place(budget, row)) is not None
    ]


def _requested(row: Row) -> str:
    """`20 % (395 tokens)`."""
    words = budget_words(row.identity.budget)
    return f"{words} ({row.tokens})" if row.tokens else words


def _subtitle(points: Points, metric: Metric, drawn: Sequence[tuple[Curve, Sequence[Any]]]) -> str:
    """What the points and bars are, and n; of metrics that only some samples have, n's range."""
    means: list[Interval] = [mean for _, known in drawn for _, _, mean in known]
    closer = f"; {metric.better} is closer" if metric.better else "; it says nothing of quality"
    if points.n == 1:
        floor = _floor(points, metric)
        dashed = "" if floor is None else f"; dashed grey: rounding floor, {short(floor)}"
        return f"One prompt{closer}{dashed}"
    bars = "mean and 95 % interval" if any(m.low is not None for m in means) else "mean"
    return f"{bars}, n = {spanned(mean.n for mean in means)}{closer}"


def _floor(points: Points, metric: Metric) -> float | None:
    """The rounding floor of one run of one sample; below it a point may be nothing but rounding."""
    floors = [floor for row in points.rows for floor in row.floors.get(metric.key, {}).values()]
    return floors[0] if floors and points.n == 1 else None


def _add_reference(shown: go.Figure, points: Points, metric: Metric, scale: int) -> None:
    """Where the full cache stands: no distance from itself, full agreement, its own answer."""
    if (floor := _floor(points, metric)) is not None:
        shown.add_hline(y=floor, line={**FLOOR_LOOK.line(), "dash": "dash"})
    value: float | None = {"lower": 0.0, "higher": 1.0}.get(metric.better or "")
    if metric.has_own_full:
        full = next((row.mean(metric.key) for row in points.rows if not row.place), None)
        value = full.mean if full else None
    if value is None:
        return
    highest = max((np.max(trace.y) for trace in shown.data), default=0.0)
    shown.add_hline(
        y=scale * value,
        line={"color": FULL_LOOK.color, "dash": "dot", "width": 2},
        annotation_text="full cache",
        # On the side where the curves have room for it.
        annotation_position="top left" if scale * value <= highest / 2 else "bottom left",
    )


def _oracles(points: Points, place: str) -> Iterator[go.Scatter]:
    """What oracles reach with the head budgets of one curve, in the looks of a run's charts."""
    curve = next((each for each in points.curves if str(each.first.place) == place), None)
    looks: Sequence[Look] = ORACLE_LOOKS
    for quantity, look in zip(ORACLES, looks, strict=True):
        known = curve.means(quantity.key) if curve else []
        if known:
            budgets, values = zip(*((b.amount, m.mean) for b, m in known), strict=True)
            hover = f"%{{customdata}}: %{{y:.4g}} {quantity.unit}"
            words = [budget_words(budget) for budget, _ in known]
            more = {"customdata": words, "hovertemplate": hover}
            yield budget_line(look, quantity.label, budgets, values, **more)


def _offered(points: Points) -> Iterator[tuple[Metric, Curve]]:
    """Every metric with every curve that is drawn of it; an oracle is drawn beside methods.

    Nothing lies between yes and no of one sample, which the grid has.
    """
    curves = points.curves
    for metric in POINT_METRICS.values():
        if metric.is_binary and points.n == 1:
            continue
        units = varied_units(curves, metric.key)
        yield from ((metric, curve) for curve in curves if curve.unit in units)


def _controls(points: Points) -> list[Control]:
    offered = list(_offered(points))
    metrics = {metric.key: metric.mean_label for metric, _ in offered}
    curves = list({id(curve): curve for _, curve in offered}.values())
    units = [unit for unit in BUDGET_UNITS if any(curve.unit == unit for curve in curves)]
    rows = [place for curve in curves for place in curve.rows]
    axes = [
        (key, axis.title)
        for key, axis in _AXES.items()
        if any(axis.place(*each) is not None for each in rows)
    ]
    limited = [c for c in curves if any(c.means(each.key) for each in ORACLES)]
    oracles = [(str(curve.first.place), curve.first.name) for curve in limited]
    return [
        Control("quantity", "Quantity", list(metrics.items())),
        Control("unit", "Budgets in", [(unit, BUDGET_UNITS[unit]) for unit in units]),
        Control("against", "Against", axes),
        Control(
            "oracles", "Oracles with the head budgets of", oracles and [("", "none"), *oracles]
        ),
    ]
