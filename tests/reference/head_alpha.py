"""The alpha per KV head by its definition: every alpha tried, bounds in Python floats."""

from typing import Any

from tests.reference.keep import Prefilled
from tests.reference.scores import Row, first_stage_score, second_stage_score, window_mean
from tests.reference.selection import two_stage

GRID = tuple(step / 20 for step in range(21))


def literal_bound(attention: Row, norms: Row, kept: set[int]) -> float:
    """Theorem 2 where it supports the norm, else the bound by attention alone."""
    sigma = sum(attention[i] for i in kept)
    total = sum(a * v for a, v in zip(attention, norms, strict=True))
    if sigma <= 0.5:
        return total + max(norms) * (1 - 2 * sigma)
    return total - (2 - 1 / sigma) * sum(attention[i] * norms[i] for i in kept)


def tried(
    scores: tuple[Row, Row],
    budget: int,
    queries: list[tuple[Row, Row]],
    protected: set[int],
    sinks: int,
) -> list[tuple[float, set[int]]]:
    """Bound of one KV head and what it keeps, at every alpha of the grid.

    Args:
        scores: of both stages, of the entries after the sinks.
        budget: entries beyond the protected ones.
        queries: attention and norms of each query head.
        protected: entries that are always kept.
        sinks: entries before the scored ones.
    """
    found = []
    for alpha in GRID:
        kept = protected | {sinks + i for i in two_stage(*scores, budget, alpha)}
        found.append((sum(literal_bound(a, v, kept) for a, v in queries), kept))
    return found


def head_alphas(
    prefilled: Prefilled,
    layer: int,
    params: dict[str, Any],
    budgets: list[int],
    asked: list[float],
) -> list[float]:
    """The best alpha of each KV head of one layer.

    Args:
        prefilled: the compressed prompt.
        layer: an evictable one.
        params: parameters of the variant.
        budgets: entries per KV head beyond the protected ones.
        asked: alphas to be checked; one whose bound is the smallest up to rounding is returned.
    """
    sinks, window, group = params["sinks"], params["window"], prefilled.group_size
    tap = prefilled.tap.attention[layer]
    attention = window_mean(tap, window)
    norms = prefilled.value_norms(layer)
    width = len(attention[0])
    first = first_stage_score(attention, group, params)
    second = second_stage_score(attention, [row[:width] for row in norms], group, params)
    whole = tap[:, -window:].double().mean(dim=1).tolist()
    protected = {*range(sinks), *range(width, prefilled.positions)}
    found = []
    for head, budget in enumerate(budgets):
        scores = (first[head][sinks:], second[head][sinks:])
        queries = [(whole[q], norms[q]) for q in range(head * group, (head + 1) * group)]
        bounds = [bound for bound, _ in tried(scores, budget, queries, protected, sinks)]
        least = min(bounds)
        mine = bounds[round(asked[head] * 20)]
        same = mine <= least + 1e-5 * abs(least)
        found.append(asked[head] if same else GRID[bounds.index(least)])
    return found
