"""The ablation ladder of a run: what each change does to heads and to the final layer."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ckv_core.errors import ConfigError
from ckv_core.events import RunResult
from ckv_core.ladder import RungResult, ladder_of
from ui.charts.layout import new_figure
from ui.palette import color_of

ROW_PX = 34


def rungs_of(result: RunResult) -> tuple[RungResult, ...]:
    """The rungs in a run; none where its variants form no ladder, or cannot be read."""
    try:
        return ladder_of(result)
    except ConfigError:
        return ()


def ladder_figure(result: RunResult) -> go.Figure:
    """Three aligned panels, one bar per rung, the base on top.

    Definition: share of query heads whose isolated head L1 is below the ladder's base; mean head
    L1 and final hidden L1 (before the final norm) as a share of the base's.
    Unit: percent. n = heads of evictable layers of one prompt, one decoding step.
    """
    rungs = rungs_of(result)
    base = rungs[0]
    panels = (
        ("Heads below the base", [100 * (rung.better_heads or 0.0) for rung in rungs]),
        ("Mean head L1, of base", [100 * rung.head_l1 / base.head_l1 for rung in rungs]),
        (
            "Final hidden L1, of base",
            [100 * rung.final_hidden_l1 / base.final_hidden_l1 for rung in rungs],
        ),
    )
    figure = make_subplots(
        rows=1,
        cols=3,
        shared_yaxes=True,
        subplot_titles=[name for name, _ in panels],
        horizontal_spacing=0.04,
    )
    house = new_figure("Ablation ladder", f"Percent; n = {base.heads} heads, one prompt")
    figure.update_layout(house.layout)
    for column, (name, values) in enumerate(panels, start=1):
        figure.add_trace(
            go.Bar(
                x=np.array(values, np.float32),
                y=np.arange(len(rungs), dtype=np.int16),
                orientation="h",
                marker={"color": color_of(column)},
                text=[f"{value:.0f}" for value in values],
                textposition="outside",
                cliponaxis=False,
                customdata=[rung.rung.change for rung in rungs],
                hovertemplate=f"%{{customdata}}<br>{name}: %{{x:.1f}} %<extra></extra>",
                showlegend=False,
            ),
            row=1,
            col=column,
        )
        figure.update_xaxes(range=[0, max(values) * 1.2 or 1], row=1, col=column)
    figure.update_yaxes(
        tickvals=np.arange(len(rungs), dtype=np.int16),
        ticktext=[rung.rung.label for rung in rungs],
        autorange="reversed",
        showgrid=False,
        automargin=True,
    )
    figure.update_layout(height=130 + ROW_PX * len(rungs), margin={"t": 92})
    return figure
