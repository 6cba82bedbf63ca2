"""The data of a sweep's charts as CSV text."""

import numpy as np

from ckv_core.analysis.sweep import FIGURES, alpha_optima, budget_unit, curves
from ckv_core.analysis.sweep_oracles import ORACLES, mean_oracle
from ckv_core.results.events import RunResult
from ui.tables.csv_text import csv_text, number


def sweep_csv(result: RunResult) -> str:
    """Data of `curve_figure`: one line per point, all figures and oracles; an unknown is empty."""
    oracles = [quantity.name for quantity in ORACLES]
    head = ("variant", "spec", "alpha", f"budget_{budget_unit(result)}", *FIGURES, *oracles)
    return csv_text(
        head,
        (
            (
                index,
                result.variants[index].spec,
                curve.alpha,
                budget,
                *(figure.read(result.variants[index]) for figure in FIGURES.values()),
                *(mean_oracle(result.variants[index], name) for name in oracles),
            )
            for curve in curves(result)
            for budget, index in curve.points
        ),
    )


def alphas_csv(result: RunResult) -> str:
    """Data of the alpha charts: one line per layer, KV head empty, and one per KV head."""
    return csv_text(
        ("spec", f"budget_{budget_unit(result)}", "layer", "kv_head", "best_alpha"),
        (
            (each.spec, each.budget, place[0], place[1] if len(place) > 1 else None, number(alpha))
            for each in alpha_optima(result)
            for values in (each.layer_alpha, each.head_alpha)
            for place, alpha in np.ndenumerate(values)
        ),
    )
