"""Several budgets or alphas on one sample: what is known, and the best alphas. No torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckv_core.experiment.points import Curve
from ckv_core.experiment.runs import together
from ckv_core.methods.parameters import Budget
from ckv_core.records.events import RunResult
from ckv_core.records.identity import Settings
from ckv_core.records.metrics import ANALYSIS_ARRAYS, Metric, metrics_in
from ckv_core.records.outcomes import tally
from ckv_core.records.records import Float32Array
from ckv_core.records.variants import spec_without

SWEPT = metrics_in("sweep")
ORACLES = tuple(quantity for quantity in ANALYSIS_ARRAYS.values() if quantity.group == "oracle")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlphaOptimum:
    """Which of the tried alphas moves the head outputs least; one method at one budget.

    Attributes:
        spec: SPEC of the points without budget and alpha.
        alphas: tried, rising.
        indices: of their variants.
        best_fixed: alpha with the least head L1 summed over all heads.
        layer_alpha: [layers] the same per layer; NaN where the layer is not evictable.
        head_alpha: [layers, kv_heads] the same per KV head, over the query heads that share it.
        layer_gain, head_gain: share of the best fixed alpha's summed head L1 that the best alpha
            per layer, or per KV head, would have saved: what hindsight could gain, not a method.
    """

    spec: str
    budget: Budget
    alphas: tuple[float, ...]
    indices: tuple[int, ...]
    best_fixed: float
    layer_alpha: Float32Array
    head_alpha: Float32Array
    layer_gain: float
    head_gain: float


def known_metrics(result: RunResult) -> list[Metric]:
    """The metrics of a point that any point but the full cache has."""
    points = [variant for variant in result.variants if variant.method != "full"]
    return [
        metric
        for metric in SWEPT.values()
        if any(metric.read(variant) is not None for variant in points)
    ]


def matched_metrics(result: RunResult) -> list[Metric]:
    """The known ones by which one curve can match another, between points too."""
    return [f for f in known_metrics(result) if f.better and not f.is_binary]


def alpha_optima(result: RunResult) -> list[AlphaOptimum]:
    """Per CriticalKV method and budget with at least two alphas, which alpha serves best."""
    specs: dict[Settings, str] = {}
    tried: dict[tuple[Settings, Budget], dict[float, int]] = {}
    for curve in curves(result):
        if curve.first.alpha is None:
            continue
        settings = curve.first.identity.settings.without("alpha")
        specs.setdefault(settings, spec_without(curve.first.curve_spec, "alpha"))
        for budget, row in curve.rows:
            tried.setdefault((settings, budget), {})[curve.first.alpha] = row.index
    return [
        _optimum(result, specs[settings], budget, by_alpha)
        for (settings, budget), by_alpha in tried.items()
        if len(by_alpha) > 1 and all(result.variants[at].perturbation for at in by_alpha.values())
    ]


def nobody_answers(result: RunResult) -> bool:
    """Whether an answer was looked for and no point but the full cache gives it."""
    counts = tally(result.variants)
    return counts.missed + counts.cut > 0 and not counts.answered


def curves(result: RunResult) -> list[Curve]:
    """Each method of one run over its budgets, in the order of its variants."""
    return together([result]).curves if result.variants else []


def _optimum(
    result: RunResult, spec: str, budget: Budget, by_alpha: dict[float, int]
) -> AlphaOptimum:
    alphas, indices = zip(*sorted(by_alpha.items()), strict=True)
    kv_heads = result.model.kv_heads if result.model else 1
    measured = [result.variants[index].perturbation for index in indices]
    heads = np.stack([each.head_l1 for each in measured if each]).astype(np.float64)
    groups = heads.reshape(*heads.shape[:2], kv_heads, -1).sum(axis=-1)
    evictable = ~np.isnan(groups).any(axis=(0, 2))
    kept = groups[:, evictable]
    totals = kept.sum(axis=(1, 2))
    best = int(totals.argmin()) if kept.size else 0
    fixed = float(totals[best])
    per_layer = float(kept.sum(axis=2).min(axis=0).sum())
    per_head = float(kept.min(axis=0).sum())
    return AlphaOptimum(
        spec=spec,
        budget=budget,
        alphas=alphas,
        indices=indices,
        best_fixed=alphas[best],
        layer_alpha=_best_alpha(alphas, groups.sum(axis=2), evictable),
        head_alpha=_best_alpha(alphas, groups, evictable),
        layer_gain=1 - per_layer / fixed if fixed else 0.0,
        head_gain=1 - per_head / fixed if fixed else 0.0,
    )


def _best_alpha(
    alphas: tuple[float, ...], values: NDArray[np.float64], evictable: NDArray[np.bool_]
) -> Float32Array:
    """The alpha of the least value, the smaller one in a tie; NaN in layers not evicted."""
    chosen = np.full(values.shape[1:], np.nan, np.float32)
    if evictable.any():
        chosen[evictable] = np.asarray(alphas, np.float32)[values[:, evictable].argmin(axis=0)]
    return chosen
