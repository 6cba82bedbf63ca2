"""The ablation ladder of a run: what each change does to heads and to the final layer."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ckv_core.errors import ConfigError
from ckv_core.events import RunResult
from ckv_core.ladder import RungResult, ladder_of
from ckv_core.records import Float32Array
from ui.charts.layout import BAR_PX, new_figure
from ui.charts.tables import csv_text, number
from ui.palette import color_of


def rungs_of(result: RunResult) -> tuple[RungResult, ...]:
    """The rungs in a run; none where its variants form no ladder, or cannot be read."""
    try:
        return ladder_of(result)
    except ConfigError:
        return ()


def ladder_figure(result: RunResult) -> go.Figure:
    """Three aligned panels, one bar per rung, the base on top.

    Definition: share of query heads whose isolated head L1 is below the ladder's base; mean head
    L1 and final hidden L1 (before the final norm) as a share of the base's; no bar where the
    base moves nothing.
    Unit: percent. n = heads of evictable layers of one prompt, one decoding step.
    """
    rungs = rungs_of(result)
    base = rungs[0]
    names = ("Heads below the base", "Mean head L1, of base", "Final hidden L1, of base")
    shares = 100 * np.array([_shares(rung, base) for rung in rungs], np.float32)
    panels = tuple(zip(names, shares.T, strict=True))
    figure = make_subplots(
        rows=1,
        cols=3,
        shared_yaxes=True,
        subplot_titles=names,
        horizontal_spacing=0.04,
    )
    house = new_figure("Ablation ladder", f"Percent; n = {base.heads} heads, one prompt")
    figure.update_layout(house.layout)
    for column, (name, values) in enumerate(panels, start=1):
        figure.add_trace(
            go.Bar(
                x=values,
                y=np.arange(len(rungs), dtype=np.int16),
                orientation="h",
                marker={"color": color_of(column)},
                text=["" if np.isnan(value) else f"{value:.0f}" for value in values],
                textposition="outside",
                cliponaxis=False,
                customdata=[rung.rung.change for rung in rungs],
                hovertemplate=f"%{{customdata}}<br>{name}: %{{x:.1f}} %<extra></extra>",
                showlegend=False,
            ),
            row=1,
            col=column,
        )
        figure.update_xaxes(range=[0, _longest(values) * 1.2], row=1, col=column)
    figure.update_yaxes(
        tickvals=np.arange(len(rungs), dtype=np.int16),
        ticktext=[rung.rung.label for rung in rungs],
        autorange="reversed",
        showgrid=False,
        automargin=True,
    )
    figure.update_layout(height=130 + BAR_PX * len(rungs), margin={"t": 92})
    return figure


def ladder_csv(result: RunResult) -> str:
    """Data of `ladder_figure`: one line per rung; shares of the base, empty where it is 0."""
    rungs = rungs_of(result)
    return csv_text(
        (
            "variant",
            "spec",
            "rung",
            "heads_below_base",
            "heads",
            "head_l1_of_base",
            "final_hidden_l1_of_base",
        ),
        (
            (
                each.index,
                result.variants[each.index].spec,
                each.rung.label,
                number(below),
                each.heads,
                number(head),
                number(final),
            )
            for each in rungs
            for below, head, final in [_shares(each, rungs[0])]
        ),
    )


def _shares(rung: RungResult, base: RungResult) -> tuple[float, float, float]:
    """The three panels' values; NaN where the base moves nothing."""
    return (
        rung.better_heads or 0.0,
        _of_base(rung.head_l1, base.head_l1),
        _of_base(rung.final_hidden_l1, base.final_hidden_l1),
    )


def _of_base(value: float, base: float) -> float:
    return value / base if base else float("nan")


def _longest(values: Float32Array) -> float:
    """Where the longest bar ends, in percent; 1 where there is none."""
    return float(np.nanmax(values, initial=0)) or 1.0
