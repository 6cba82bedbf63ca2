"""What a sweep's points say: lines over the budget, budgets of equal quality, best alphas."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckv_core.events import RunResult
from ckv_core.records import Float32Array, VariantResult
from ui.summary import mean_head_l1


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure of a point.

    Attributes:
        read: variant -> value; None where it is not known.
        lower: whether lower is closer to the full cache.
    """

    key: str
    label: str
    unit: str
    lower: bool
    read: Callable[[VariantResult], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """The points of one method and alpha, by rising budget.

    Attributes:
        name: what a reader sees.
        spec: the points' SPEC without the budget.
        points: (resolved budget in tokens, index of the variant).
    """

    name: str
    spec: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlphaOptimum:
    """Which alpha of those tried moves the head outputs least; one method, one budget.

    Attributes:
        name: method and budget.
        alphas: tried, rising.
        best_fixed: alpha with the least mean head L1 over all heads.
        layer_alpha: [layers] alpha with the least mean head L1 of the layer; NaN where not evicted.
        head_alpha: [layers, kv_heads] alpha with the least head L1, summed over the query group
            that shares the kept set; NaN where not evicted.
        gain: 1 - mean head L1 under `head_alpha` / under `best_fixed`; 0 to 1.
        heads: KV heads counted.
    """

    name: str
    alphas: tuple[float, ...]
    best_fixed: float
    layer_alpha: Float32Array
    head_alpha: Float32Array
    gain: float
    heads: int


def _answer(variant: VariantResult) -> float | None:
    if "token_f1" in variant.answer_scores:
        return variant.answer_scores["token_f1"]
    return None if variant.answer_found is None else float(variant.answer_found)


METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric(
            key="final",
            label="Final hidden L1",
            unit="L1",
            lower=True,
            read=lambda v: v.perturbation.final_hidden_l1 if v.perturbation else None,
        ),
        Metric(key="head", label="Mean head L1", unit="L1", lower=True, read=mean_head_l1),
        Metric(
            key="kl",
            label="KL",
            unit="nats",
            lower=True,
            read=lambda v: v.perturbation.kl if v.perturbation else None,
        ),
        Metric(
            key="agreement",
            label="Agreement with the full cache",
            unit="share",
            lower=False,
            read=lambda v: v.agreement,
        ),
        Metric(
            key="answer",
            label="Answer, token F1 or found",
            unit="0 to 1",
            lower=False,
            read=_answer,
        ),
    )
}


def lines_of(result: RunResult) -> list[Line]:
    """The lines of a sweep, in the order in which their methods were asked for.

    Points of one line have equal settings but for the budget. Where two budgets resolve to the
    same tokens, the first is kept.
    """
    found: dict[str, dict[int, int]] = {}
    names: dict[str, str] = {}
    for index, variant in enumerate(result.variants):
        if variant.receipt is None or variant.method == "full":
            continue
        spec = _without(variant.spec, ("budget",))
        found.setdefault(spec, {}).setdefault(variant.receipt.budget_tokens, index)
        names[spec] = _name(variant)
    return [Line(names[spec], spec, tuple(sorted(at.items()))) for spec, at in found.items()]


def values_of(result: RunResult, line: Line, metric: Metric) -> tuple[list[int], list[float]]:
    """Budgets and values of the line's points whose value is known."""
    pairs = [(budget, metric.read(result.variants[index])) for budget, index in line.points]
    known = [(budget, value) for budget, value in pairs if value is not None]
    return [budget for budget, _ in known], [value for _, value in known]


def matching_budget(budgets: Sequence[int], values: Sequence[float], target: float) -> float | None:
    """Least budget at which a line is at or below the target; lower values are better.

    Between points the value is linear in the logarithm of the budget.

    Args:
        budgets: rising.
        values: one per budget.
        target: value to match.

    Returns:
        tokens; the least budget itself if it is below the target already (the true figure may
        be smaller); None if no point reaches the target.
    """
    for at, value in enumerate(values):
        if value > target:
            continue
        if at == 0:
            return float(budgets[0])
        before = values[at - 1]
        share = (before - target) / (before - value)
        low, high = math.log(budgets[at - 1]), math.log(budgets[at])
        return math.exp(low + share * (high - low))
    return None


def alpha_optima(result: RunResult) -> list[AlphaOptimum]:
    """For every CriticalKV method and budget with at least two alphas, which alpha serves best."""
    groups: dict[tuple[str, int], dict[float, VariantResult]] = {}
    for variant in result.variants:
        if variant.receipt is None or variant.perturbation is None:
            continue
        alpha = _alpha(variant)
        if alpha is not None:
            key = (_without(variant.spec, ("budget", "alpha")), variant.receipt.budget_tokens)
            groups.setdefault(key, {}).setdefault(alpha, variant)
    kv_heads = result.model.kv_heads if result.model else 1
    return [
        _optimum(
            f"{_name(next(iter(tried.values())), alpha=False)}, budget {budget}", tried, kv_heads
        )
        for (_, budget), tried in groups.items()
        if len(tried) > 1
    ]


def _optimum(name: str, tried: dict[float, VariantResult], kv_heads: int) -> AlphaOptimum:
    alphas = tuple(sorted(tried))
    moved = [tried[alpha].perturbation for alpha in alphas]
    heads = np.stack([found.head_l1 for found in moved if found]).astype(np.float64)
    layers = heads.shape[1]
    groups = heads.reshape(len(alphas), layers, kv_heads, -1).sum(axis=-1)
    evicted = ~np.isnan(groups).any(axis=(0, 2))
    kept = groups[:, evicted]
    totals = kept.sum(axis=(1, 2))
    best = int(totals.argmin())
    least = float(kept.min(axis=0).sum())
    return AlphaOptimum(
        name=name,
        alphas=alphas,
        best_fixed=alphas[best],
        layer_alpha=_chosen(alphas, groups.sum(axis=2), evicted),
        head_alpha=_chosen(alphas, groups, evicted),
        gain=1 - least / float(totals[best]) if totals[best] > 0 else 0.0,
        heads=int(evicted.sum()) * kv_heads,
    )


def _chosen(
    alphas: tuple[float, ...], values: NDArray[np.float64], evicted: NDArray[np.bool_]
) -> Float32Array:
    """The alpha of the least value, the smaller one in a tie; NaN in layers left whole."""
    chosen = np.full(values.shape[1:], np.nan, np.float32)
    chosen[evicted] = np.asarray(alphas, np.float32)[values[:, evicted].argmin(axis=0)]
    return chosen


def _alpha(variant: VariantResult) -> float | None:
    """The alpha that was asked for; None without CriticalKV and where the method finds its own."""
    if not variant.critical or variant.spec.partition(":")[0].endswith("+critical_auto"):
        return None
    return float(variant.params["alpha"]) if "alpha" in variant.params else None


def _name(variant: VariantResult, *, alpha: bool = True) -> str:
    """The label with whatever the SPEC says beside the budget."""
    pairs = _pairs(variant.spec)
    pairs.pop("budget", None)
    own = pairs.pop("alpha", None)
    shown = [f"alpha {own}"] if alpha and own is not None else []
    return ", ".join([variant.label, *shown, *(f"{key} {value}" for key, value in pairs.items())])


def _without(spec: str, keys: Sequence[str]) -> str:
    head = spec.partition(":")[0]
    kept = ",".join(f"{k}={v}" for k, v in _pairs(spec).items() if k not in keys)
    return f"{head}:{kept}" if kept else head


def _pairs(spec: str) -> dict[str, str]:
    """The key=value pairs of a parsed variant's SPEC."""
    parts = filter(None, spec.partition(":")[2].split(","))
    return {key: value for key, _, value in (part.partition("=") for part in parts)}
