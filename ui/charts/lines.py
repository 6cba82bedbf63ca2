"""Curves over budgets, of one run and of several: their looks and their axis."""

import html
from collections.abc import Iterable, Sequence

import numpy as np
import plotly.graph_objects as go

from ui.looks.palette import Look


def budget_line(
    look: Look, name: str, budgets: Sequence[float], values: Sequence[float], unit: str
) -> go.Scatter:
    """One curve."""
    return go.Scatter(
        x=np.array(budgets, np.float64),
        y=np.array(values, np.float64),
        name=html.escape(name, quote=False),
        mode="lines+markers",
        line=look.line(),
        marker=look.marker(8),
        hovertemplate=f"budget %{{x}}: %{{y:.4g}} {unit}",
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
