"""Chart of several runs: the ablation, means over the prompts with intervals."""

from collections.abc import Iterator
from dataclasses import astuple

import numpy as np
import plotly.graph_objects as go

from ckv_core.analysis.ablation_means import AblationStepMeans, ablation_means, has_ablation
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.experiment.stats import Interval
from ui.charts.ablation import ablation_bars
from ui.charts.chart import Chart
from ui.charts.interval_bars import interval_bars, interval_subtitle
from ui.charts.layout import TEXT_COLOR
from ui.tables.aggregate import AggregatedRuns
from ui.tables.csv_text import Cell, csv_text

_UNKNOWN = Interval(float("nan"), None, None, 0)


def ablation_means_figure(runs: AggregatedRuns) -> go.Figure:
    """Three bars per step, all in percent, the base on top, as in the chart of one run.

    Definition: each number is read against the base of its own prompt, then averaged over the
    prompts; bars are 95 % intervals, none where n is too small.
    Unit: percent. n = prompts that have the step.
    """
    steps = ablation_means(_variants(runs))
    columns = list(zip(*map(_percent, steps), strict=True))
    values = np.array([[each.mean for each in column] for column in columns], np.float32).T
    subtitle = f"Percent; {interval_subtitle([each.head_l1 for each in steps])}"
    figure = ablation_bars([each.step for each in steps], values, subtitle)
    for bar, column in zip(figure.data, columns, strict=True):
        if whiskers := interval_bars(column, TEXT_COLOR):
            bar.update(error_x=whiskers, text=None)  # the numbers would stand on the whiskers
    ends = [each.high or each.mean for column in columns for each in column]
    figure.update_xaxes(range=[0, float(np.nanmax(ends, initial=0)) * 1.3 or 1])
    return figure


def ablation_means_csv(runs: AggregatedRuns) -> str:
    """Data of `ablation_means_figure`: one line per step and figure; shares of 1, and L1."""
    return csv_text(
        ("spec", "rung", "figure", "mean", "low", "high", "prompts"),
        _rows(ablation_means(_variants(runs))),
    )


def _rows(steps: list[AblationStepMeans]) -> Iterator[tuple[Cell, ...]]:
    for each in steps:
        figures = {
            "heads_below_base": each.better_heads,
            "head_l1_of_base": each.head_of_base,
            "final_hidden_l1_of_base": each.final_of_base,
            "head_l1": each.head_l1,
            "final_hidden_l1": each.final_hidden_l1,
        }
        for name, mean in figures.items():
            if mean is not None:
                yield (each.step.spec, each.step.label, name, *astuple(mean))


def _percent(step: AblationStepMeans) -> tuple[Interval, Interval, Interval]:
    """Heads below the base, none of which are the base's own; head and final L1 of the base's."""
    below = step.better_heads or Interval(0.0, None, None, step.n)
    of_base = (each or _UNKNOWN for each in (step.head_of_base, step.final_of_base))
    first, second, third = map(_times_100, (below, *of_base))
    return first, second, third


def _times_100(share: Interval) -> Interval:
    low, high = (None if end is None else 100 * end for end in (share.low, share.high))
    return Interval(100 * share.mean, low, high, share.n)


def _variants(runs: AggregatedRuns) -> list[JoinedVariant]:
    return [member.joined for member in runs.members]


ABLATION_CHART: Chart[AggregatedRuns] = Chart(
    name="ablation",
    title="Ablation",
    csv="ablation",
    has_data=lambda runs: has_ablation(_variants(runs)),
    draw=lambda runs, _: ablation_means_figure(runs),
)
