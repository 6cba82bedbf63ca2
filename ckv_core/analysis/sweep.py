"""What a finished sweep says: its curves, its best alphas, and what oracles reach. No torch."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckv_core.request.identity import Settings, identify
from ckv_core.request.variants import spec_without
from ckv_core.results.byte_budget import asked_bytes
from ckv_core.results.events import RunResult
from ckv_core.results.figures import figures_in
from ckv_core.results.outcomes import has_exact_match
from ckv_core.results.quantities import QUANTITIES, Figure
from ckv_core.results.records import Float32Array

SWEPT = figures_in("sweep")
ORACLES = tuple(quantity for quantity in QUANTITIES.values() if quantity.group == "oracle")
_SAME = 1e-3  # relative; groups of a sweep round their decoding step differently
AXES = {"tokens": "entries per KV head", "kib": "KiB of the evicted cache"}


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one method with the same settings but for the budget.

    Attributes:
        spec: the first one's SPEC without the budget.
        label: of the method; alpha is in `alpha`.
        alpha: as resolved; None where the method takes none.
        points: (budget, index of the variant), by rising budget; in which unit says `budget_unit`.
    """

    spec: str
    label: str
    alpha: float | None
    points: tuple[tuple[int, int], ...]

    def values(self, result: RunResult, figure: Figure) -> list[tuple[int, float]]:
        """(budget, value) of the points whose value is known."""
        read = [(budget, figure.read(result.variants[index])) for budget, index in self.points]
        return [(budget, v) for budget, v in read if v is not None and not math.isnan(v)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlphaOptimum:
    """Which of the tried alphas moves the head outputs least; one method at one budget.

    Attributes:
        spec: SPEC of the points without budget and alpha.
        budget: tokens.
        alphas: tried, rising.
        indices: of their variants.
        best_fixed: alpha with the least head L1 summed over all heads.
        layer_alpha: [layers] the same per layer; NaN where the layer is not evictable.
        head_alpha: [layers, kv_heads] the same per KV head, over the query heads that share it.
        layer_gain, head_gain: share of the best fixed alpha's summed head L1 that the best alpha
            per layer, or per KV head, would have saved: what hindsight could gain, not a method.
    """

    spec: str
    budget: int
    alphas: tuple[float, ...]
    indices: tuple[int, ...]
    best_fixed: float
    layer_alpha: Float32Array
    head_alpha: Float32Array
    layer_gain: float
    head_gain: float


def known_figures(result: RunResult) -> list[Figure]:
    """Of a sweep's, those that any point but the full cache has."""
    points = [variant for variant in result.variants if variant.method != "full"]
    return [
        figure
        for figure in SWEPT.values()
        if any(figure.read(variant) is not None for variant in points)
    ]


def shown_figures(result: RunResult) -> list[Figure]:
    """The known ones without an exact match that even the full cache does not have."""
    left_out = set() if has_exact_match(result.variants) else {"exact_match"}
    return [figure for figure in known_figures(result) if figure.key not in left_out]


def matched_figures(result: RunResult) -> list[Figure]:
    """The known ones by which one curve can be said to match another, between points too."""
    return [f for f in known_figures(result) if f.better and not f.is_binary]


def budget_unit(result: RunResult) -> str:
    """Of the curves' budgets, a key of `AXES`."""
    asked = [asked_bytes(variant) for variant in result.variants if variant.method != "full"]
    return "kib" if asked and all(asked) else "tokens"


def curves(result: RunResult) -> list[Curve]:
    """The curves of a sweep, in the order of its variants; where budgets coincide, the first.

    Points belong together by their resolved settings, however much of these a SPEC writes out.
    Budgets are tokens, or KiB where all were asked in MiB, so that stores share the axis.
    """
    in_bytes = budget_unit(result) == "kib"
    points_of: dict[Settings, dict[int, int]] = {}
    for index, variant in enumerate(result.variants):
        receipt = variant.receipt
        if receipt is None or receipt.budget_tokens < 1 or variant.method == "full":  # 0: imported
            continue
        points = points_of.setdefault(identify(variant).settings, {})
        asked = asked_bytes(variant) or 0
        points.setdefault(asked // 1024 if in_bytes else receipt.budget_tokens, index)
    return [_curve(result, points) for points in points_of.values()]


def _curve(result: RunResult, points: dict[int, int]) -> Curve:
    first = result.variants[min(points.values())]
    alpha = first.params.get("alpha")
    return Curve(
        spec=spec_without(first.spec, "budget"),
        label=first.label,
        # An imported run may say anything here.
        alpha=float(alpha) if isinstance(alpha, int | float) else None,
        points=tuple(sorted(points.items())),
    )


def alpha_optima(result: RunResult) -> list[AlphaOptimum]:
    """Per CriticalKV method and budget with at least two alphas, which alpha serves best."""
    specs: dict[Settings, str] = {}
    tried: dict[tuple[Settings, int], dict[float, int]] = {}
    for curve in curves(result):
        if curve.alpha is None:
            continue
        for budget, index in curve.points:
            variant = result.variants[index]
            settings = identify(variant).settings.without("alpha")
            specs.setdefault(settings, spec_without(curve.spec, "alpha"))
            tried.setdefault((settings, budget), {})[curve.alpha] = index
    return [
        _optimum(result, specs[settings], budget, by_alpha)
        for (settings, budget), by_alpha in tried.items()
        if len(by_alpha) > 1 and all(result.variants[at].perturbation for at in by_alpha.values())
    ]


def _optimum(result: RunResult, spec: str, budget: int, by_alpha: dict[float, int]) -> AlphaOptimum:
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


@dataclass(frozen=True, slots=True)
class OracleSet:
    """Mean head L1 of oracles against the budget, with the head budgets of some curves.

    Attributes:
        curves: those that share them and, with them, what the oracles reach.
        values: per name of an oracle (budget in tokens, mean head L1), by rising budget.
    """

    curves: tuple[Curve, ...]
    values: dict[str, tuple[tuple[int, float], ...]]


def known_oracles(result: RunResult) -> list[Figure]:
    """Those that any point has."""
    return [
        quantity
        for quantity in ORACLES
        if any(quantity.read(variant) is not None for variant in result.variants)
    ]


def oracle_sets(result: RunResult) -> list[OracleSet]:
    """The oracles of every curve, once for all that give each KV head the same budget.

    An oracle keeps as many entries per KV head as the variant does, and what that never drops.
    """
    sets: list[OracleSet] = []
    for curve in curves(result):
        values = {quantity.key: curve.values(result, quantity) for quantity in ORACLES}
        known = {name: tuple(points) for name, points in values.items() if points}
        same = [at for at, each in enumerate(sets) if _equal(each.values, known)]
        if same:
            sets[same[0]] = OracleSet((*sets[same[0]].curves, curve), sets[same[0]].values)
        elif known:
            sets.append(OracleSet((curve,), known))
    return sets


def _equal(
    one: dict[str, tuple[tuple[int, float], ...]], other: dict[str, tuple[tuple[int, float], ...]]
) -> bool:
    if one.keys() != other.keys():
        return False
    pairs = [(np.array(one[name]), np.array(other[name])) for name in one]
    return all(a.shape == b.shape and np.allclose(a, b, rtol=_SAME, atol=0) for a, b in pairs)
