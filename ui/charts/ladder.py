"""The ablation ladder of a run: what each change does to heads and to the final layer."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.ablation import Rung, RungResult, ladder_of
from ckv_core.errors import ConfigError
from ckv_core.results.events import RunResult
from ckv_core.results.records import Float32Array
from ui.charts.layout import LEGEND_ROW_PX, name_bars, new_figure
from ui.looks.palette import SPARE, bar_marker
from ui.tables.csv_text import csv_text, number

RUNG_PX = 52  # three bars and a gap
# What each bar of a rung is, and its pattern: colour alone would not tell them apart.
_BARS = (
    ("Heads below the base", ""),
    ("Mean head L1, of base", "/"),
    ("Final hidden L1, of base", "x"),
)


def rungs_of(result: RunResult) -> tuple[RungResult, ...]:
    """The rungs in a run; none where its variants form no ladder, or cannot be read."""
    try:
        return ladder_of(result)
    except ConfigError:
        return ()


def ladder_figure(result: RunResult) -> go.Figure:
    """Three bars per rung, all in percent, the base on top.

    Definition: share of query heads whose isolated head L1 is below the ladder's base; mean head
    L1 and final hidden L1 (before the final norm) as a share of the base's; no bar where the
    base moves nothing.
    Unit: percent. n = heads of evictable layers of one prompt, one decoding step.
    """
    rungs = rungs_of(result)
    base = rungs[0]
    shares = 100 * np.array([_shares(rung, base) for rung in rungs], np.float32)
    subtitle = f"Percent; n = {base.heads} heads, one prompt"
    return ladder_bars([each.rung for each in rungs], shares, subtitle)


def ladder_bars(rungs: Sequence[Rung], shares: Float32Array, subtitle: str) -> go.Figure:
    """The bars of `ladder_figure`.

    Args:
        rungs: the base first.
        shares: [rungs, 3] in percent; NaN leaves a bar out.
        subtitle: what they are of.
    """
    figure = new_figure("Ablation ladder", subtitle, legend_rows=len(_BARS))
    for (name, pattern), (color, _), values in zip(_BARS, SPARE, shares.T, strict=False):
        figure.add_trace(
            go.Bar(
                x=values,
                y=np.arange(len(rungs), dtype=np.int16),
                orientation="h",
                name=name,
                marker=bar_marker(color, pattern),
                text=["" if np.isnan(value) else f"{value:z.0f}" for value in values],
                customdata=[rung.change for rung in rungs],
                hovertemplate=f"%{{customdata}}<br>{name}: %{{x:.1f}} %<extra></extra>",
            )
        )
    name_bars(figure, [rung.label for rung in rungs])
    rows = RUNG_PX * len(rungs) + LEGEND_ROW_PX * len(_BARS)
    figure.update_layout(height=120 + rows, bargap=0.25)
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
