"""The ablation of a run: what each change does to heads and to the final layer."""

import numpy as np
import plotly.graph_objects as go

from ckv_core.errors import ConfigError
from ckv_core.experiment.ablation import AblationStepResult, ablation_of
from ckv_core.records.events import RunResult
from ui.charts.layout import LEGEND_ROW_PX, bar_chart
from ui.looks.palette import SPARE, bar_marker
from ui.tables.csv_text import csv_text, number

STEP_PX = 52  # three bars and a gap
# What each bar of a step is, and its pattern: colour alone would not tell them apart.
_BARS = (
    ("Heads below the base", ""),
    ("Mean head L1, of base", "/"),
    ("Final hidden L1, of base", "x"),
)


def ablation_steps_of(result: RunResult) -> tuple[AblationStepResult, ...]:
    """The steps in a run; none where its variants form no ablation, or cannot be read."""
    try:
        return ablation_of(result)
    except ConfigError:
        return ()


def ablation_figure(result: RunResult) -> go.Figure:
    """Three bars per step, all in percent, the base on top.

    Definition: share of query heads whose isolated head L1 is below the ablation's base; mean head
    L1 and final hidden L1 (before the final norm) as a share of the base's; no bar where the
    base moves nothing.
    Unit: percent. n = heads of evictable layers of one prompt, one decoding step.
    """
    steps = ablation_steps_of(result)
    base = steps[0]
    shares = 100 * np.array([_shares(step, base) for step in steps], np.float32)
    subtitle = f"Percent; n = {base.heads} heads, one prompt"
    series = [
        {
            "x": values,
            "name": name,
            "marker": bar_marker(color, pattern),
            "text": ["" if np.isnan(value) else f"{value:z.0f}" for value in values],
            "customdata": [each.step.change for each in steps],
            "hovertemplate": f"%{{customdata}}<br>{name}: %{{x:.1f}} %<extra></extra>",
        }
        for (name, pattern), (color, _), values in zip(_BARS, SPARE, shares.T, strict=False)
    ]
    figure = bar_chart("Ablation", subtitle, [each.step.label for each in steps], *series)
    rows = STEP_PX * len(steps) + LEGEND_ROW_PX * len(_BARS)
    return figure.update_layout(height=120 + rows, bargap=0.25)


def ablation_csv(result: RunResult) -> str:
    """Data of `ablation_figure`: one line per step; shares of the base, empty where it is 0."""
    steps, rows = ablation_steps_of(result), []
    for each in steps:
        spec = result.variants[each.index].spec
        below, head, final = map(number, _shares(each, steps[0]))
        rows.append((each.index, spec, each.step.label, below, each.heads, head, final))
    shares = ("heads_below_base", "heads", "head_l1_of_base", "final_hidden_l1_of_base")
    return csv_text(("variant", "spec", "rung", *shares), rows)


def _shares(step: AblationStepResult, base: AblationStepResult) -> tuple[float, float, float]:
    """The three panels' values; NaN where the base moves nothing."""
    return (
        step.better_heads or 0.0,
        _of_base(step.head_l1, base.head_l1),
        _of_base(step.final_hidden_l1, base.final_hidden_l1),
    )


def _of_base(value: float, base: float) -> float:
    return value / base if base else float("nan")
