"""Charts: a run's records in, a small Plotly figure or CSV text out. No Gradio, no torch."""

from ui.charts.cache import budgets_figure, cache_figure
from ui.charts.heads import head_grid_figure
from ui.charts.layers import final_figure, head_layer_figure, layer_figure

__all__ = [
    "budgets_figure",
    "cache_figure",
    "final_figure",
    "head_grid_figure",
    "head_layer_figure",
    "layer_figure",
]
