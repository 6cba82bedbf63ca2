"""What all charts share: transparent ground, greys that read in light and dark, names, empties.

Data goes in as numpy arrays, which Plotly sends as compact typed arrays.
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ckv_core.experiment import names
from ckv_core.experiment.regimes import marked_name, run_regimes
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import VariantSpec
from ui.looks.palette import DARK, Look

Choices = Mapping[str, str]
# What is drawn: one run, or several taken together.
Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Control:
    """One choice of a chart.

    Attributes:
        options: (value, label); the first is the default.
    """

    name: str
    label: str
    options: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(Generic[Source]):
    """One chart.

    Attributes:
        name: in its address.
        title: for readers of the controls and files.
        csv: table route that holds its data.
        has_data: whether there is anything to draw.
        draw: the source and one valid choice per control -> figure.
        controls: what can be chosen, given the source; a control without options is left out.
    """

    name: str
    title: str
    csv: str
    has_data: Callable[[Source], bool]
    draw: Callable[[Source, Choices], go.Figure]
    controls: Callable[[Source], list[Control]] = lambda _: []

    def offered(self, source: Source) -> list[Control]:
        return [control for control in self.controls(source) if control.options]

    def figure(self, source: Source, choices: Choices) -> go.Figure | None:
        """The chart with these choices, unknown ones left out; None where there is no data."""
        if not self.has_data(source):
            return None
        chosen = {}
        for control in self.offered(source):
            values = [value for value, _ in control.options]
            given = choices.get(control.name, "")
            chosen[control.name] = given if given in values else values[0]
        return self.draw(source, chosen)


def chart_values(charts: Iterable[Chart[Source]], source: Source) -> list[dict[str, Any]]:
    """Values of the RunCharts component for those charts that have data."""
    return [
        {
            "name": chart.name,
            "title": chart.title,
            "csv": chart.csv,
            "controls": list(map(asdict, chart.offered(source))),
        }
        for chart in charts
        if chart.has_data(source)
    ]


# About 4.1:1 on the light and on the dark card alike; pages give the words a colour of their own.
TEXT_COLOR = "#777d87"
GRID_COLOR = "rgba(128, 128, 128, 0.25)"
MISSING_COLOR = "rgba(128, 128, 128, 0.45)"
CHART_HEIGHT = 320
BAR_PX = 34  # one bar and its name, of up to two lines
LINE_PX = 17
AROUND_BARS_PX = 112  # title above, ticks and unit below
LEGEND_ROW_PX = 19  # one variant a row is the worst case, on a phone


def new_figure(title: str, subtitle: str = "", *, legend_rows: int = 0) -> go.Figure:
    """An empty figure in the house look.

    Args:
        title: short enough for a phone; Plotly does not wrap it.
        subtitle: what is plotted and n; no longer than about 60 characters.
        legend_rows: variants in the legend, for which the chart grows.
    """
    figure = go.Figure()
    heading: dict[str, object] = {"text": title, "x": 0.02, "font": {"size": 14}}
    if subtitle:
        heading["subtitle"] = {"text": subtitle, "font": {"size": 11}}
    figure.update_layout(
        template="none",
        title=heading,
        meta=DARK,
        height=CHART_HEIGHT + LEGEND_ROW_PX * legend_rows,
        autosize=True,
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": TEXT_COLOR, "size": 12, "family": "IBM Plex Sans, system-ui, sans-serif"},
        margin={"l": 8, "r": 12, "t": 68, "b": 8},
        legend={
            "orientation": "h",
            "x": 0.02,
            "y": 0,
            "xref": "container",
            "yref": "container",
            "tracegroupgap": 0,
        },
        hoverlabel={"namelength": -1},
    )
    axis = {
        "automargin": True,
        "gridcolor": GRID_COLOR,
        "linecolor": GRID_COLOR,
        "zeroline": False,
        "showline": True,
        "separatethousands": True,
        "title": {"font": {"size": 12}, "standoff": 8},
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def empty_figure(title: str, reason: str = "This run has no such measurement.") -> go.Figure:
    """A figure that says why there is nothing to draw."""
    figure = new_figure(title)
    figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
    figure.add_annotation(
        text=reason, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 13}
    )
    return figure


def display_names(
    variants: Sequence[VariantResult | VariantSpec], *, escaped: bool = True
) -> list[str]:
    """One name per variant, as everywhere; escaped for Plotly."""
    shown = names.display_names(variants)
    return [html.escape(name, quote=False) for name in shown] if escaped else shown


def ranked_names(result: RunResult) -> list[str]:
    """The same for a chart that sets variants beside one another: with their regime, if it must."""
    shown = display_names(result.variants)
    return [marked_name(*each) for each in zip(shown, run_regimes(result).marks, strict=True)]


def variant_line(
    look: Look, name: str, y: NDArray[np.floating], unit: str = "", **more: Any
) -> go.Scatter:
    """One variant as a line with marks, over the layers unless `x` says otherwise.

    Args:
        look: of the variant, or of what is drawn beside one.
        name: shown in the legend.
        y: [layers], or as many as `x`; NaN leaves a gap.
        unit: of y, for the hover text.
        more: Plotly's fields of a scatter trace that are to be another way.
    """
    line = {
        "x": np.arange(len(y), dtype=np.int16),
        "mode": "lines+markers",
        "line": look.line(),
        "marker": look.marker(7),
        "hovertemplate": f"layer %{{x}}: %{{y:.4g}} {unit}",
    }
    return go.Scatter(y=y, name=name, **(line | more))


def crosses(x: NDArray[np.integer], y: NDArray[np.floating], color: str, **more: Any) -> go.Scatter:
    """Marks of the points that stand out."""
    marker = {"symbol": "x", "size": 8, "color": color}
    return go.Scatter(x=x, y=y, mode="markers", marker=marker, **more)


def line_chart(
    title: str, subtitle: str, traces: Sequence[go.Scatter], axes: tuple[str, str], **y_axis: Any
) -> go.Figure:
    """Lines with the titles of both axes; y begins at 0 unless `y_axis` says otherwise."""
    if not traces:
        return empty_figure(title)
    rows = sum(trace.showlegend is not False for trace in traces)
    figure = new_figure(title, subtitle, legend_rows=rows)
    figure.add_traces(traces)
    figure.update_xaxes(title_text=axes[0])
    figure.update_yaxes(title_text=axes[1], **(y_axis or {"rangemode": "tozero"}))
    return figure


def bar_chart(
    title: str, subtitle: str, labels: Sequence[str], *series: Mapping[str, Any]
) -> go.Figure:
    """Horizontal bars with their labels, the first on top.

    By number, not as categories: bars of one category would be stacked on one another. The value
    stands beside its bar, where the page's ground and not the bar's colour is behind it.

    Args:
        title: as of `new_figure`.
        subtitle: as of `new_figure`.
        labels: of the bars of each series.
        series: Plotly's fields of its bars: x, marker, text, hovertemplate and others.
    """
    figure = new_figure(title, subtitle, legend_rows=len(series) if len(series) > 1 else 0)
    for fields in series:
        figure.add_bar(y=np.arange(len(labels), dtype=np.int16), orientation="h", **fields)
    longest = max((float(np.nanmax(bar.x, initial=0)) for bar in figure.data), default=0.0)
    names = [name.replace(":", ":<br>").replace(", ", ",<br>") for name in labels]
    row_px = max(BAR_PX, LINE_PX * max(1 + name.count("<br>") for name in names))
    figure.update_layout(height=max(figure.layout.height, AROUND_BARS_PX + row_px * len(names)))
    figure.update_traces(textposition="outside", cliponaxis=False)
    figure.update_xaxes(range=[0, longest * 1.3 or 1], nticks=4)
    figure.update_yaxes(
        tickvals=np.arange(len(labels), dtype=np.int16),
        ticktext=names,
        autorange="reversed",
        showgrid=False,
    )
    return figure


def rgba(color: str, alpha: float) -> str:
    """`#rrggbb` with an opacity, still with the six digits that have a twin in the dark."""
    return f"{color}{round(255 * alpha):02x}"


def budget_line(
    look: Look, name: str, budgets: Sequence[float], values: Sequence[float], **more: Any
) -> go.Scatter:
    """A line over budgets, or what `more` says; the name is escaped here."""
    place = np.array(budgets, np.float64)
    fields: dict[str, Any] = {"x": place, "marker": look.marker(8)} | more
    return variant_line(
        look, html.escape(name, quote=False), np.array(values, np.float64), **fields
    )


def budget_axis(figure: go.Figure, budgets: Iterable[float], unit: str) -> None:
    """A logarithmic axis with a tick at every budget."""
    ticks = sorted(set(budgets))
    figure.update_xaxes(
        title_text=f"budget, {unit}",
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:,.10g}" for tick in ticks],
    )
