"""Chart of several runs: the hidden L1 after each layer, a line with its interval per variant."""

import html
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.aggregate import (
    Aggregate,
    LayerMeans,
    hidden_by_layer,
    reduction_by_layer,
)
from ckv_core.analysis.regimes import marked_name
from ui.charts.chart import Chart, Choices, Control
from ui.charts.interval_bars import interval_subtitle
from ui.charts.layout import TEXT_COLOR, empty_figure, new_figure, rgba, variant_line
from ui.tables.aggregate import AggregatedRuns, variant_name
from ui.tables.csv_text import Cell, csv_text

Kind = Literal["hidden", "reduction"]
UNIT = "L1"
_TITLES: dict[Kind, str] = {
    "hidden": "Hidden L1 after each layer",
    "reduction": "Hidden L1, base minus CriticalKV",
}
_NO_BUDGET = "none requested"
_INK = 1.0  # of all bands together: many over one another would hide the lines
_BAND_OPACITY = 0.2


def layers_figure(runs: AggregatedRuns, kind: Kind, budget: str) -> go.Figure:
    """Mean over prompts after each layer, one line per variant (the paper's Fig. 3a and 5).

    Definition: cascaded hidden L1, ||x_l - x^_l||_1 of the residual stream after block l, before
    the final norm; `reduction` is that of the same settings and budget without CriticalKV minus
    the variant's own, on the same prompts, above 0 where CriticalKV is closer. A band is the
    95 % interval of each layer's mean; none where n is too small.
    Unit: L1 over the hidden size. n = prompts.

    Drawn are the variants of one budget, as it was asked for.
    """
    shown = [member for member in runs.members if _budget(member) == budget]
    lines = [(each, means) for each in shown if (means := _means(runs, each, kind)) is not None]
    if not lines:
        return empty_figure(_TITLES[kind], "Not measured at this budget.")
    subtitle = interval_subtitle([each for _, means in lines for each in means])
    figure = new_figure(_TITLES[kind], subtitle, legend_rows=len(lines))
    opacity = min(_BAND_OPACITY, _INK / len(lines))
    for at, (member, means) in enumerate(lines):
        values = np.array([each.mean for each in means], np.float32)
        look = runs.looks[member.joined.place]
        name = html.escape(variant_name(member.joined, with_budget=False), quote=False)
        name = marked_name(name, runs.marks[member.joined.place])
        line = variant_line(look, name, values, UNIT)
        line.update(
            legendgroup=str(at),
            hovertemplate=f"{line.hovertemplate}, n = {means[0].n}",
        )
        fill = rgba(look.color, opacity)
        figure.add_traces([*_band(means, fill, str(at)), line])
    if kind == "reduction":
        figure.add_hline(y=0, line={"color": TEXT_COLOR, "width": 1})
    figure.update_xaxes(title_text="layer")
    axis = {"hidden": UNIT, "reduction": f"{UNIT}, above 0 CriticalKV is closer"}[kind]
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return figure


def layers_csv(runs: AggregatedRuns) -> str:
    """Data of `layers_figure`: one line per variant, figure and layer."""
    return csv_text(
        ("spec", "figure", "unit", "layer", "mean", "low", "high", "prompts"), _rows(runs)
    )


def _rows(runs: AggregatedRuns) -> Iterator[tuple[Cell, ...]]:
    for kind, title in _TITLES.items():
        for member in runs.members:
            for layer, each in enumerate(_means(runs, member, kind) or ()):
                yield (member.spec, title, UNIT, layer, each.mean, each.low, each.high, each.n)


def _means(runs: AggregatedRuns, member: Aggregate, kind: Kind) -> LayerMeans | None:
    if kind == "hidden":
        return hidden_by_layer(member.joined)
    return reduction_by_layer(member.joined, [each.joined for each in runs.members])


def _band(means: LayerMeans, fill: str, group: str) -> list[go.Scatter]:
    """The interval as an area under its line: the low end, then the high end filled down to it.

    At a layer where all prompts are equal, it is the mean.
    """
    if all(each.low is None for each in means):
        return []
    ends = np.array([(e.mean, e.mean) if e.low is None else (e.low, e.high) for e in means])
    edge = {
        "mode": "lines",
        "line": {"width": 0},
        "legendgroup": group,
        "showlegend": False,
        "hoverinfo": "skip",
    }
    layers = np.arange(len(ends), dtype=np.int16)
    return [
        go.Scatter(x=layers, y=ends[:, 0], **edge),
        go.Scatter(x=layers, y=ends[:, 1], **edge, fill="tonexty", fillcolor=fill),
    ]


def _budget(member: Aggregate) -> str:
    return str(member.joined.budget) if member.joined.budget else _NO_BUDGET


def _is_measured(member: Aggregate) -> bool:
    return any(variant.perturbation for variant in member.joined.variants)


def _kinds(measured: Sequence[Aggregate]) -> list[Kind]:
    known = {member.joined.identity for member in measured}
    is_paired = any(identity.base in known for identity in known)
    return ["hidden", "reduction"] if is_paired else ["hidden"]


def _controls(runs: AggregatedRuns) -> list[Control]:
    measured = [member for member in runs.members if _is_measured(member)]
    budgets = dict.fromkeys(map(_budget, measured))
    return [
        Control("quantity", "Quantity", [(kind, _TITLES[kind]) for kind in _kinds(measured)]),
        Control("budget", "Budget", [(budget, budget) for budget in budgets]),
    ]


def _draw(runs: AggregatedRuns, chosen: Choices) -> go.Figure:
    kind: Kind = "reduction" if chosen["quantity"] == "reduction" else "hidden"
    return layers_figure(runs, kind, chosen["budget"])


LAYER_CHART: Chart[AggregatedRuns] = Chart(
    name="layers",
    title="Hidden L1 after each layer",
    csv="layers",
    controls=_controls,
    has_data=lambda runs: any(map(_is_measured, runs.members)),
    draw=_draw,
)
