"""Charts of several runs taken together: means with intervals, and the head win map."""

import html
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ui.aggregate import Aggregate, Figure, Member, WinMap
from ui.charts.layout import MISSING_COLOR, empty_figure, new_figure
from ui.palette import DIVERGING_SCALE, color_of, marker_of

ROW_PX = 34
CELL_PX = 12


def mean_figure(found: Aggregate, figure: Figure) -> go.Figure:
    """Mean over prompts of one figure, a point per variant; bars are bootstrap intervals.

    Definition: BCa bootstrap of the mean over prompts, 95 %; no bar where n is too small.
    """
    rows = [
        (at, m, m.figures[figure.key])
        for at, m in enumerate(found.members)
        if figure.key in m.figures
    ]
    if not rows:
        return empty_figure(figure.label, "Not measured in these runs.")
    has_bars = any(each.low is not None for _, _, each in rows)
    how = "mean and 95 % interval" if has_bars else "mean; too few prompts for an interval"
    shown = new_figure(figure.label, f"{how}, n = {found.n} prompts")
    for place, (at, _, each) in enumerate(rows):
        bars = None
        if each.low is not None and each.high is not None:
            bars = {
                "type": "data",
                "symmetric": False,
                "array": [each.high - each.mean],
                "arrayminus": [each.mean - each.low],
                "color": color_of(at),
                "thickness": 2,
            }
        shown.add_trace(
            go.Scatter(
                x=[each.mean],
                y=[place],
                mode="markers",
                error_x=bars,
                marker={"color": color_of(at), "symbol": marker_of(at), "size": 10},
                hovertemplate=f"%{{x:.4g}} {figure.unit}, n = {each.n}<extra></extra>",
            )
        )
    names = _names([member for _, member, _ in rows])
    shown.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, autorange="reversed", showgrid=False
    )
    shown.update_xaxes(title_text=figure.unit, rangemode="tozero")
    if figure.is_share:
        shown.update_xaxes(tickformat=".0%")
    shown.update_layout(showlegend=False, height=130 + ROW_PX * max(3, len(rows)))
    return shown


def win_figure(name: str, wins: WinMap) -> go.Figure:
    """Head win map over prompts (the paper's Fig. 2).

    Definition: log2(mean L1 / mean base L1) per query head, means over prompts; below 0 (orange)
    the head wins. Layers left whole are grey.
    """
    share = wins.wins / wins.heads if wins.heads else 0.0
    figure = new_figure(
        f"{html.escape(name, quote=False)}: {share:.1%} of heads win",
        f"{wins.wins:,} of {wins.heads:,} query heads, means of n = {wins.n} prompts",
    )
    finite = np.abs(wins.ratio[np.isfinite(wins.ratio)])
    limit = max(0.1, float(np.percentile(finite, 98))) if finite.size else 0.1
    values = np.where(np.isinf(wins.ratio), np.sign(wins.ratio) * 2 * limit, wins.ratio)
    figure.add_trace(
        go.Heatmap(
            z=values.astype(np.float32),
            zmin=-limit,
            zmax=limit,
            colorscale=DIVERGING_SCALE,
            colorbar={
                "title": {"text": "log2 of L1 / base L1", "side": "right"},
                "thickness": 12,
                "outlinewidth": 0,
            },
            hovertemplate="layer %{y}, head %{x}: %{z:.3f}<extra></extra>",
        )
    )
    layers, heads = wins.ratio.shape
    figure.update_xaxes(title_text="query head", showgrid=False, dtick=max(1, round(heads / 10)))
    figure.update_yaxes(
        title_text="layer", showgrid=False, dtick=max(1, round(layers / 10)), autorange="reversed"
    )
    figure.update_layout(
        height=min(720, max(320, 150 + CELL_PX * layers)), plot_bgcolor=MISSING_COLOR
    )
    return figure


def _names(members: Sequence[Member]) -> list[str]:
    """The label, with the SPEC's settings on a second line."""
    return [
        html.escape(m.label, quote=False)
        + (
            f"<br>{html.escape(settings, quote=False)}"
            if (settings := m.spec.partition(":")[2])
            else ""
        )
        for m in members
    ]
