"""Charts of several runs taken together: means with intervals, and the head win map."""

import html
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.aggregate import Aggregate, HeadWins
from ckv_core.analysis.regimes import marked_name
from ckv_core.results.figures import FIGURES
from ckv_core.results.quantities import Figure
from ui.charts.ablation_means import ABLATION_CHART
from ui.charts.budget_means import BUDGET_CHART
from ui.charts.chart import Chart, Choices, Control
from ui.charts.heads import as_head_grid, log2_ratio, ratio_grid
from ui.charts.interval_bars import SHARE_TICKS, interval_bars, interval_subtitle, n_prompts
from ui.charts.layer_bands import LAYER_CHART
from ui.charts.layout import BAR_PX, LEGEND_ROW_PX, new_figure
from ui.tables.aggregate import (
    DIAGNOSTICS_FIGURES,
    MAIN_FIGURES,
    AggregatedRuns,
    settings_text,
    variant_name,
)
from ui.tables.csv_text import csv_text, number


def mean_figure(runs: AggregatedRuns, figure: Figure) -> go.Figure:
    """Mean over prompts of one figure, a point per variant; bars are intervals.

    Definition: mean over prompts with its 95 % interval; no bar where n is too small.
    """
    rows = [
        (runs.looks[m.joined.place], m, m.figures[figure.key])
        for m in runs.members
        if figure.key in m.figures
    ]
    subtitle = interval_subtitle([each for _, _, each in rows])
    shown = new_figure(html.escape(figure.mean_label, quote=False), subtitle)
    for place, (look, _, each) in enumerate(rows):
        shown.add_trace(
            go.Scatter(
                x=[each.mean],
                y=[place],
                mode="markers",
                error_x=interval_bars([each], look.color),
                marker=look.marker(10),
                hovertemplate=f"%{{x:.4g}} {figure.unit_name}, n = {each.n}<extra></extra>",
            )
        )
    names = _names(runs, [member for _, member, _ in rows], is_covered=figure.is_covered)
    shown.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, autorange="reversed", showgrid=False
    )
    of = ", sigma > 0.5" if figure.is_covered else ""
    shown.update_xaxes(title_text=f"{figure.unit_name}{of}")
    if figure.is_share:
        shown.update_xaxes(tickformat=SHARE_TICKS)
    row_px = BAR_PX + LEGEND_ROW_PX * figure.is_covered
    shown.update_layout(showlegend=False, height=130 + row_px * max(3, len(rows)))
    return shown


def win_figure(name: str, wins: HeadWins) -> go.Figure:
    """Head win map over prompts (the paper's Fig. 2).

    Definition: log2(mean L1 / mean base L1) per query head, means over prompts; below 0 (blue)
    the head wins. Layers not evicted are grey.
    """
    title = (
        f"{html.escape(name, quote=False)}: {wins.share:.1%} of heads win",
        f"{wins.count:,} of {wins.heads:,} query heads, means of {n_prompts(wins.n)}",
    )
    own, base = wins.own.astype(np.float32), wins.base.astype(np.float32)
    return as_head_grid(ratio_grid(title, own, base, "L1"), own)


def means_csv(runs: AggregatedRuns) -> str:
    """Data of `mean_figure`: one line per variant and figure, the diagnostics's among them.

    Of figures of the covered heads also how many these are, and of how many.
    """
    heads = ("covered_heads", "heads")
    return csv_text(
        ("spec", "figure", "unit", "mean", "low", "high", "prompts", *heads),
        (
            (
                *(member.spec, figure.mean_label, figure.unit_name, *astuple(each)),
                *((member.checked, member.bounded) if figure.is_covered else (None, None)),
            )
            for member in runs.members
            for figure in (*MAIN_FIGURES, *DIAGNOSTICS_FIGURES)
            if (each := member.figures.get(figure.key)) is not None
        ),
    )


def wins_csv(runs: AggregatedRuns) -> str:
    """Data of `win_figure`: one line per variant with a base, layer and query head."""
    return csv_text(
        ("spec", "layer", "query_head", "mean_l1", "mean_base_l1", "log2_ratio", "prompts"),
        (
            (member.spec, layer, head, number(own), number(base), number(ratio), wins.n)
            for member in runs.members
            if (wins := member.head_wins) is not None
            for (layer, head), own, base, ratio in _heads(wins)
        ),
    )


def member_names(runs: AggregatedRuns) -> list[str]:
    """One name per variant: its label, with the settings as at the bars."""
    return [variant_name(member.joined) for member in runs.members]


def _heads(wins: HeadWins) -> list[tuple[tuple[int, int], float, float, float]]:
    ratio = log2_ratio(wins.own.astype(np.float32), wins.base.astype(np.float32))
    return [
        (at, float(wins.own[at]), float(wins.base[at]), float(ratio[at]))
        for at in np.ndindex(wins.own.shape[0], wins.own.shape[1])
    ]


def _names(
    runs: AggregatedRuns, members: Sequence[Aggregate], *, is_covered: bool = False
) -> list[str]:
    """The label with the regime; below it the settings, and how many heads are covered."""
    marks = runs.marks
    lines = (
        [
            marked_name(m.label, marks[m.joined.place]),
            settings_text(m.spec, m.joined.alpha, m.joined.budget),
            f"{m.checked:,} of {m.bounded:,} heads" if is_covered else "",
        ]
        for m in members
    )
    return ["<br>".join(html.escape(t, quote=False) for t in each if t) for each in lines]


def _mean_chart(figure: Figure) -> Chart[AggregatedRuns]:
    return Chart(
        name=figure.key,
        title=figure.mean_label,
        csv="means",
        has_data=lambda runs: bool(runs.known((figure,))),
        draw=lambda runs, _: mean_figure(runs, figure),
    )


def _win_controls(runs: AggregatedRuns) -> list[Control]:
    names = member_names(runs)
    options = [(str(at), names[at]) for at, m in enumerate(runs.members) if m.head_wins]
    return [Control("variant", "Variant", options)]


def _draw_wins(runs: AggregatedRuns, chosen: Choices) -> go.Figure:
    at = int(chosen["variant"])
    wins = runs.members[at].head_wins
    if wins is None:
        raise ValueError("only variants with a base are offered")
    return win_figure(member_names(runs)[at], wins)


_ALL: tuple[Chart[AggregatedRuns], ...] = (
    BUDGET_CHART,
    *map(_mean_chart, MAIN_FIGURES),
    LAYER_CHART,
    ABLATION_CHART,
    Chart(
        name="diagnostics",
        title="Quantities of the diagnostics",
        csv="means",
        controls=lambda runs: [
            Control(
                "quantity",
                "Quantity",
                [(f.key, f.mean_label) for f in runs.known(DIAGNOSTICS_FIGURES)],
            )
        ],
        has_data=lambda runs: bool(runs.known(DIAGNOSTICS_FIGURES)),
        draw=lambda runs, chosen: mean_figure(runs, FIGURES[chosen["quantity"]]),
    ),
    Chart(
        name="wins",
        title="Head win map",
        csv="wins",
        controls=_win_controls,
        has_data=lambda runs: any(member.head_wins for member in runs.members),
        draw=_draw_wins,
    ),
)
AGGREGATE_CHARTS: dict[str, Chart[AggregatedRuns]] = {chart.name: chart for chart in _ALL}
