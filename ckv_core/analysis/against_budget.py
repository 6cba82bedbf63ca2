"""A figure against the budget, over several prompts (the paper's figure 3c). No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from ckv_core.analysis.aggregate import Aggregate
from ckv_core.analysis.intervals import Interval
from ckv_core.methods.parameters import Budget
from ckv_core.request.identity import Settings

# Budgets of different units share no axis. Unit of `Budget` -> what an axis says.
BUDGET_UNITS = {
    "tokens": "entries per KV head",
    "percent": "percent of the compressed prompt",
    "mib": "MiB of the evicted cache",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BudgetCurve:
    """One method with the same settings over the budgets that are asked for, in one unit.

    Attributes:
        spec: one SPEC of theirs, without the budget.
        label: of the method; alpha is in `alpha`.
        alpha: None where the method takes none or no run says it.
        unit: of `BUDGET_UNITS`.
        place: of these settings among those of all variants.
        points: by rising budget.
    """

    spec: str
    label: str
    alpha: float | None
    unit: str
    place: int
    points: tuple[tuple[Budget, Aggregate], ...]

    def values(self, key: str) -> list[tuple[Budget, Interval]]:
        """(budget, mean over the prompts) of the points whose figure is known."""
        return [(budget, each.figures[key]) for budget, each in self.points if key in each.figures]


def budget_curves(members: Sequence[Aggregate]) -> list[BudgetCurve]:
    """The curves of several prompts, in the order of their variants; no figure is read."""
    found: dict[tuple[Settings, str], dict[Budget, Aggregate]] = {}
    for member in members:
        identity = member.joined.identity
        if (budget := identity.budget) is not None:  # as the full cache has none
            found.setdefault((identity.settings, budget.unit), {})[budget] = member
    return [
        BudgetCurve(
            spec=first.joined.curve_spec,
            label=first.label,
            alpha=settings.alpha,
            unit=unit,
            place=first.joined.place,
            points=tuple(sorted(points.items(), key=lambda point: point[0].amount)),
        )
        for (settings, unit), points in found.items()
        for first in [next(iter(points.values()))]
    ]


def varied_units(curves: Sequence[BudgetCurve], key: str) -> list[str]:
    """Units in which some curve knows this figure at two budgets or more; draws no interval."""
    wide = {c.unit for c in curves if sum(key in each.figures for _, each in c.points) > 1}
    return [unit for unit in BUDGET_UNITS if unit in wide]
