"""A figure against the budget, over several prompts (the paper's figure 3c). No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from ckv_core.errors import ConfigError
from ckv_core.knobs import Budget
from ckv_core.metrics.intervals import Aggregate, Interval
from ckv_core.sweep_reading import spec_without
from ckv_core.variants import VariantSpec

# Budgets of different units share no axis. Unit of `Budget` -> what an axis says.
BUDGET_UNITS = {
    "tokens": "entries per KV head",
    "percent": "percent of the compressed prompt",
    "mib": "MiB of the evicted cache",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BudgetCurve:
    """One method and alpha over the budgets that its SPECs ask for, in one unit.

    Attributes:
        spec: their SPEC without the budget.
        label: of the method; alpha is in `alpha`.
        alpha: None where the method takes none.
        unit: of `BUDGET_UNITS`.
        points: by rising budget.
    """

    spec: str
    label: str
    alpha: float | None
    unit: str
    points: tuple[tuple[Budget, Aggregate], ...]

    def values(self, key: str) -> list[tuple[Budget, Interval]]:
        """(budget, mean over the prompts) of the points whose figure is known."""
        return [(budget, each.figures[key]) for budget, each in self.points if key in each.figures]


def budget_curves(members: Sequence[Aggregate]) -> list[BudgetCurve]:
    """The curves of several prompts, in the order of their variants; no figure is read.

    Of two variants that ask for the same budget the first counts.
    """
    heads: dict[tuple[str, str], tuple[str, float | None]] = {}
    found: dict[tuple[str, str], dict[Budget, Aggregate]] = {}
    for member in members:
        try:
            variant = VariantSpec.parse(member.spec)
            budget = variant.budget
        except ConfigError:  # own indices and the full cache have no budget
            continue
        key = (spec_without(member.spec, "budget"), budget.unit)
        alpha = variant.params.get("alpha")
        heads[key] = (member.label, None if alpha is None else float(alpha))
        found.setdefault(key, {}).setdefault(budget, member)
    return [
        BudgetCurve(
            spec=spec,
            label=heads[spec, unit][0],
            alpha=heads[spec, unit][1],
            unit=unit,
            points=tuple(sorted(points.items(), key=lambda point: point[0].amount)),
        )
        for (spec, unit), points in found.items()
    ]


def varied_units(curves: Sequence[BudgetCurve], key: str) -> list[str]:
    """Units in which some curve knows this figure at two budgets or more; draws no interval."""
    wide = {c.unit for c in curves if sum(key in each.figures for _, each in c.points) > 1}
    return [unit for unit in BUDGET_UNITS if unit in wide]
