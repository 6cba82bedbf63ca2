"""Charts of a run of many samples: its points, its needles, its perturbation by sample."""

import html
from collections.abc import Sequence
from math import log10
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ckv_core.base.percent import percent
from ckv_core.experiment import sentences
from ckv_core.experiment.decide import FEWEST_SOURCES
from ckv_core.experiment.reading import Reading
from ckv_core.methods.parameters import Budget
from ckv_core.records.run_request import FULL, Point
from ui.charts.heads import colorbar_of
from ui.charts.layout import (
    GRID_COLOR,
    TEXT_COLOR,
    Chart,
    Control,
    budget_axis,
    budget_line,
    chart_values,
    empty_figure,
    line_chart,
    new_figure,
    rgba,
    variant_line,
)
from ui.charts.points import points_chart
from ui.looks.palette import DENSITY_SCALE
from ui.tables.samples import cell_address, looks

_MEASURES = {"final": "final hidden L1", "head": "mean head L1"}
TOLERANCE_COLOR = "#0b6b45"
LABEL_PX = 17
# Of the chart: as high as the list of decisions beside it, a line of 42 px a method.
LEAST_HEIGHT, MOST_HEIGHT, LIST_PX = 300, 420, 210
AROUND_PX = 125  # of it: title, ticks and title of the axis
_CANNOT = 0.5  # a cell where the full cache scores less is shown apart


def bound_figure(reading: Reading) -> go.Figure:
    """What each method loses at most against the budget, with the tolerance as a band.

    Definition: the bound of `decide` in points of 100, with 95 % confidence for all methods and
    budgets together; n = sources that count. The axis of budgets is logarithmic.
    """
    decision, of_variant = reading.decision, looks(reading)
    figure = new_figure("Loses at most, in points of 100 (95 %)", legend_rows=len(decision.methods))
    ends = []
    for method in decision.methods:
        budgets = [Budget.parse(budget).amount for budget in method.points]
        bounds = [100 * found.at_most for found in method.points.values()]
        lost = ["–" if p.loss is None else f"{100 * p.loss:.1f}" for p in method.points.values()]  # noqa: RUF001
        look = of_variant[method.variant]
        figure.add_trace(
            budget_line(
                look,
                method.name,
                budgets,
                bounds,
                customdata=[[*each] for each in zip(method.points, lost, strict=True)],
                hovertemplate="%{customdata[0]}: at most %{y:.1f}, %{customdata[1]} lost",
            )
        )
        ends.append((bounds[-1], budgets[-1], method.name))
    tolerance = 100 * decision.tolerance
    top = max(*(max(trace.y) for trace in figure.data), 1.5 * tolerance)
    _add_tolerance(figure, tolerance, has_room=tolerance > 0.1 * top)
    _add_labels(figure, ends, top)
    budget_axis(figure, budgets, "")
    is_share = method.budget.endswith("%")
    unit = "share of the KV cache" if is_share else "tokens"
    first, last = (log10(end) for end in (min(budgets), max(budgets)))
    pad = 0.02 * (last - first) or 0.1
    figure.update_xaxes(
        title_text=f"Budget ({unit}, log scale)", showgrid=False, range=[first - pad, last + pad]
    )
    if is_share:
        figure.update_xaxes(ticksuffix=" %", ticktext=[f"{at:g} %" for at in sorted(budgets)])
    figure.update_yaxes(range=[0, 1.04 * top], nticks=6)
    return figure


def _add_tolerance(figure: go.Figure, tolerance: float, *, has_room: bool) -> None:
    """The band of losses that are accepted; its edge with the number, inside where it has room."""
    band: dict[str, Any] = {"line_width": 0, "fillcolor": rgba(TOLERANCE_COLOR, 0.12)}
    figure.add_hrect(y0=0, y1=tolerance, layer="below", **band)
    figure.add_hline(
        y=tolerance,
        line={"color": TEXT_COLOR, "width": 1.5},
        annotation={
            "text": f"Tolerance: {sentences.points(tolerance / 100)}",
            "xanchor": "left",
            "yanchor": "top" if has_room else "bottom",
            "x": 0.01,
        },
    )


def _add_labels(figure: go.Figure, ends: Sequence[tuple[float, float, str]], top: float) -> None:
    """Each line's name at its end, apart from one another; a narrow page has a legend instead."""
    whole = min(MOST_HEIGHT, max(LEAST_HEIGHT, LIST_PX + 42 * len(ends)))
    height = whole - AROUND_PX
    last = -1.0 * LABEL_PX
    for value, budget, name in sorted(ends, reverse=True):
        at = (1 - value / (1.04 * top)) * height
        last = max(at, last + LABEL_PX)
        figure.add_annotation(
            name="end",
            x=log10(budget),
            y=value,
            ax=26,
            ay=last - at,
            text=html.escape(name, quote=False),
            xanchor="left",
            align="left",
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=GRID_COLOR,
            standoff=7,
        )
    # Without the legend it is lower.
    figure.update_layout(meta={**figure.layout.meta, "ends": True, "height": whole})


def needle_figure(reading: Reading, point: Point) -> go.Figure:
    """Mean score by length and depth of the needle, of one method at one budget.

    Definition: mean over the samples of a cell, in points; a cell where the full cache itself
    scores below 50 is crossed out. n = samples of a cell, in the hover text.
    """
    own, full = _cells(reading, point), _cells(reading, Point(FULL, None))
    lengths = sorted({length for length, _ in own | full})
    depths = sorted({depth for _, depth in own | full})
    name = _point_name(reading, point)
    if not own:
        return empty_figure(f"{name}: needles", "There is no result yet.")
    cannot = [at for at, scores in full.items() if sum(scores) / len(scores) < _CANNOT]
    shape = (len(depths), len(lengths))
    score, more = np.full(shape, np.nan, np.float32), np.empty(shape, object)
    figure = new_figure(
        f"{html.escape(name, quote=False)}: needles",
        f"Mean score; n = {sentences.spanned(map(len, own.values()))} samples a cell; "
        "x: the full cache is below 50",
    )
    for (length, depth), scores in own.items():
        at, mean = (depths.index(depth), lengths.index(length)), 100 * sum(scores) / len(scores)
        address = cell_address(reading.slug, point, length=f"{length:.0f}", depth=f"{depth:g}")
        text = f"{mean:.0f}{' x' if (length, depth) in cannot else ''}"
        score[at], more[at] = mean, [len(scores), text, address]
    figure.add_heatmap(
        z=score,
        x=[f"{length:,.0f}" for length in lengths],
        y=[percent(depth) for depth in depths],
        customdata=more.tolist(),
        zmin=0,
        zmax=100,
        colorscale=DENSITY_SCALE,
        xgap=1,
        ygap=1,
        colorbar=colorbar_of("score"),
        hovertemplate="%{x} tokens, depth %{y}: %{z:.0f}, n = %{customdata[0]}<extra></extra>",
    )
    edge = {"color": "#111827", "width": 1}
    figure.add_scatter(
        x=[f"{length:,.0f}" for length, _ in cannot],
        y=[percent(depth) for _, depth in cannot],
        mode="markers",
        marker={"symbol": "x", "size": 10, "color": "#ffffff", "line": edge},
        hoverinfo="skip",
    )
    figure.update_xaxes(title_text="prompt, tokens", type="category", showgrid=False)
    figure.update_yaxes(title_text="depth", type="category", autorange="reversed", showgrid=False)
    figure.update_layout(showlegend=False)
    return figure


def perturbation_figure(reading: Reading, variant: str, budget: str, measure: str) -> go.Figure:
    """Perturbation of every sample at one budget, of a variant beside the one without CriticalKV.

    Definition: L1 at the first decoding step, samples by rising L1 of the other (the paper's
    Figures 3b and 6); without a base in the study the other is its first variant.
    """
    pair, label = (_other(reading, variant), variant), _MEASURES[measure]
    known: dict[str, dict[str, float]] = {name: {} for name in pair}
    for result in reading.results:
        value = result.figures.get(measure)
        if result.variant in known and result.budget == budget and value is not None:
            known[result.variant][result.sample] = value
    theirs, own = (known[name] for name in pair)
    samples = sorted(theirs.keys() & own.keys(), key=theirs.__getitem__)
    title = f"{label[0].upper()}{label[1:]} of every sample at {sentences.budget_words(budget)}"
    if not samples:
        return empty_figure(title, "No sample has results of both methods yet.")
    lower = sum(own[name] < theirs[name] for name in samples)
    own_name = html.escape(reading.names[variant], quote=False)
    subtitle = f"{own_name}: lower in {lower} of n = {len(samples)} samples"
    of_variant = looks(reading)
    traces = [
        variant_line(
            of_variant[name],
            html.escape(reading.names[name], quote=False),
            np.array([known[name][at] for at in samples], np.float64),
            x=np.arange(1, len(samples) + 1, dtype=np.int16),
            line=of_variant[name].line() | {"width": 1},
            customdata=[html.escape(at, quote=False) for at in samples],
            hovertemplate="sample %{customdata}: %{y:.4g}",
        )
        for name in pair
    ]
    axes = (f"samples by {label} of {reading.names[pair[0]]}", label)
    return line_chart(title, subtitle, traces, axes).update_xaxes(nticks=6)


def _cells(reading: Reading, point: Point) -> dict[tuple[float, float], list[float]]:
    """Scores by (length, depth) of samples that have both."""
    tags = {sample.id: sample.tags for sample in reading.samples}
    cells: dict[tuple[float, float], list[float]] = {}
    for result in reading.results:
        own = tags.get(result.sample, {})
        if (result.variant, result.budget) != (point.variant, point.budget) or result.score is None:
            continue
        if "length" in own and "depth" in own:
            place = (float(own["length"]), float(own["depth"]))
            cells.setdefault(place, []).append(result.score)
    return cells


def _point_name(reading: Reading, point: Point) -> str:
    at = f" at {sentences.budget_words(point.budget)}" if point.budget else ""
    return reading.names[point.variant] + at


def _point_controls(reading: Reading) -> list[Control]:
    points = reading.study.points()
    scored = {(each.variant, each.budget) for each in reading.results if each.score is not None}
    # Methods first, and of these what has results.
    order = sorted(
        range(len(points)),
        key=lambda at: (at == 0, (points[at].variant, points[at].budget) not in scored),
    )
    options = [(str(at), _point_name(reading, points[at])) for at in order]
    return [Control("point", "Method and budget", options)]


def _other(reading: Reading, variant: str) -> str:
    """What a variant's perturbation is set beside: its base, or else the first variant."""
    return reading.bases.get(variant, reading.variants[0])


def _sample_controls(reading: Reading) -> list[Control]:
    bases = reading.bases
    names = [name for name in reading.variants if _other(reading, name) != name]
    names.sort(key=lambda name: name not in bases)
    measured = {m for m in _MEASURES if any(m in r.figures for r in reading.results)}
    measures = [(measure, label) for measure, label in _MEASURES.items() if measure in measured]
    budgets = [*dict.fromkeys(point.budget or "" for point in reading.study.points()[1:])]
    known = {each.budget for each in reading.results if each.figures.keys() & measured}
    budgets.sort(key=lambda budget: budget not in known)
    return [
        Control("variant", "Method", [(name, reading.names[name]) for name in names]),
        Control(
            "budget", "Budget", [(budget, sentences.budget_words(budget)) for budget in budgets]
        ),
        Control("measure", "Quantity", measures),
    ]


_ALL: tuple[Chart[Reading], ...] = (
    Chart(
        name="bound",
        title="Loses at most, against the budget",
        csv="bounds",
        has_data=lambda reading: reading.decision.n >= FEWEST_SOURCES,
        draw=lambda reading, _: bound_figure(reading),
    ),
    points_chart("budget", "scores", lambda reading: reading.points),
    Chart(
        name="needles",
        title="Needle heat map",
        csv="results",
        controls=_point_controls,
        has_data=lambda reading: bool(_cells(reading, Point(FULL, None))),
        draw=lambda reading, chosen: needle_figure(
            reading, reading.study.points()[int(chosen["point"])]
        ),
    ),
    Chart(
        name="samples",
        title="Perturbation, sample by sample",
        csv="results",
        controls=_sample_controls,
        has_data=lambda reading: (
            len(reading.variants) > 1 and any("head" in r.figures for r in reading.results)
        ),
        draw=lambda reading, chosen: perturbation_figure(
            reading, chosen["variant"], chosen["budget"], chosen["measure"]
        ),
    ),
)
STUDY_CHARTS = {chart.name: chart for chart in _ALL}


def charts_value(reading: Reading, *names: str) -> dict[str, Any]:
    """Value of the RunCharts of these charts."""
    return {
        "slug": reading.slug,
        "base": "/studies",
        "file": "study",
        "key": str(len(reading.results)),
        "text": "The charts appear here with the first results.",
        "head": reading.points.regimes.head,
        "charts": chart_values([STUDY_CHARTS[name] for name in names], reading),
    }
