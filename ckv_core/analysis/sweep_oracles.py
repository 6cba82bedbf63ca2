"""What oracles reach at the budgets of a sweep, where its bounds were measured. No torch."""

from dataclasses import dataclass

import numpy as np

from ckv_core.analysis.known import mean_of_known
from ckv_core.analysis.sweep import Curve, curves
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import QUANTITIES, Quantity
from ckv_core.results.records import VariantResult

ORACLES = tuple(quantity for quantity in QUANTITIES.values() if quantity.group == "oracle")
_SAME = 1e-3  # relative; groups of a sweep round their decoding step differently


@dataclass(frozen=True, slots=True)
class OracleSet:
    """Mean head L1 of oracles against the budget, with the head budgets of some curves.

    Attributes:
        curves: those that share them and, with them, what the oracles reach.
        values: per name of an oracle (budget in tokens, mean head L1), by rising budget.
    """

    curves: tuple[Curve, ...]
    values: dict[str, tuple[tuple[int, float], ...]]


def mean_oracle(variant: VariantResult, name: str) -> float | None:
    """Mean over the heads of evictable layers of an oracle's head L1; None if not measured."""
    return mean_of_known(variant.analysis.get(name))


def known_oracles(result: RunResult) -> list[Quantity]:
    """Those that any point has."""
    return [
        quantity
        for quantity in ORACLES
        if any(mean_oracle(variant, quantity.name) is not None for variant in result.variants)
    ]


def oracle_sets(result: RunResult) -> list[OracleSet]:
    """The oracles of every curve, once for all that give each KV head the same budget.

    An oracle keeps as many entries per KV head as the variant does, and what that never drops.
    """
    found: list[OracleSet] = []
    for curve in curves(result):
        values = {quantity.name: _values(result, curve, quantity.name) for quantity in ORACLES}
        known = {name: points for name, points in values.items() if points}
        same = [at for at, each in enumerate(found) if _equal(each.values, known)]
        if same:
            found[same[0]] = OracleSet((*found[same[0]].curves, curve), found[same[0]].values)
        elif known:
            found.append(OracleSet((curve,), known))
    return found


def _values(result: RunResult, curve: Curve, name: str) -> tuple[tuple[int, float], ...]:
    read = [(budget, mean_oracle(result.variants[index], name)) for budget, index in curve.points]
    return tuple((budget, value) for budget, value in read if value is not None)


def _equal(
    one: dict[str, tuple[tuple[int, float], ...]], other: dict[str, tuple[tuple[int, float], ...]]
) -> bool:
    if one.keys() != other.keys():
        return False
    pairs = [(np.array(one[name]), np.array(other[name])) for name in one]
    return all(a.shape == b.shape and np.allclose(a, b, rtol=_SAME, atol=0) for a, b in pairs)
