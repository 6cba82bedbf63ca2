"""Variants over several prompts: what figures, heads, layers and bounds come to. No torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ckv_core.analysis.aggregate_runs import Joined, JoinedVariant, join
from ckv_core.analysis.pairs import Pair, compare_pairs
from ckv_core.analysis.regimes import Regimes, regimes_of
from ckv_core.experiment.stats import (
    Interval,
    Values,
    interval_note,
    mean_interval,
    score_interval,
)
from ckv_core.methods.parameters import Budget
from ckv_core.request.identity import Settings
from ckv_core.results.chain import check_chain
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES, figures_in
from ckv_core.results.outcomes import cut_note
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import Float32Array, Outcome, VariantResult

LayerMeans = tuple[Interval, ...]  # [layers], all of the same prompts
# Budgets of different units share no axis. Unit of `Budget` -> what an axis says.
BUDGET_UNITS = {
    "tokens": "entries per KV head",
    "percent": "percent of the compressed prompt",
    "mib": "MiB of the evicted cache",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadWins:
    """Heads whose mean L1 over the prompts is below the base's (the paper's figure 2).

    Attributes:
        own, base: [layers, query_heads] mean L1 of the variant and of its base; NaN where
            nothing was measured.
        n: prompts.
    """

    derived: ClassVar = ("count", "heads", "share")

    own: Values
    base: Values
    n: int

    @property
    def wins(self) -> NDArray[np.bool_]:
        """[layers, query_heads]; False where nothing was measured."""
        return self.own < self.base

    @property
    def heads(self) -> int:
        return int((~np.isnan(self.own)).sum())

    @property
    def count(self) -> int:
        """Heads that improve."""
        return int(self.wins.sum())

    @property
    def share(self) -> float:
        return self.count / self.heads if self.heads else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """One variant over all prompts.

    Attributes:
        figures: by key of those that are shown of means, `figures_in("means")`: of a
            prompt, or of its heads, layers or steps, averaged over prompts.
        head_wins: None without a base in every prompt.
        violations: (prompt, head) pairs with sigma over 0.5 where the chain
            L1 <= theta <= theta-hat <= relaxed does not hold; None if the bounds were not measured.
        checked: such pairs in all.
        bounded: pairs with all bounds, whatever sigma is.
        outcomes: prompts by what their generation came to.
        joined: what it is a mean of.
    """

    spec: str
    label: str
    figures: Mapping[str, Interval]
    head_wins: HeadWins | None
    violations: int | None
    checked: int = 0
    bounded: int = 0
    outcomes: Mapping[Outcome, int]
    joined: JoinedVariant


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Several:
    """Several runs of one model over their prompts.

    Attributes:
        members: one per variant, in the order of `joined.variants`; the full cache too.
        pairs: variants against their bases and against the full cache, prompt by prompt.
        notes: sentences on what limits the figures.
        scenarios: of the prompts.
    """

    joined: Joined
    members: list[Aggregate]
    pairs: list[Pair]
    notes: list[str]
    scenarios: frozenset[str]

    @property
    def regimes(self) -> Regimes:
        """Of the members, in their order."""
        return regimes_of([m.joined.variants[0].method for m in self.members], self.scenarios)

    @property
    def marks(self) -> dict[int, str]:
        """The regime by the place of the settings, where there are both."""
        pairs = zip(self.members, self.regimes.marks, strict=True)
        return {member.joined.place: mark for member, mark in pairs}


def together(results: Sequence[RunResult]) -> Several:
    """Every variant of several runs over its prompts; see `join` for what is one variant.

    Args:
        results: oldest first: of a variant that several runs of one prompt have, the last counts.

    Raises:
        ConfigError: no run, other models, or no variant in common.
    """
    joined = join(results)
    notes = [
        *joined.notes,
        interval_note(joined.n, joined.fewest),
        *(_alpha_note(each.variants) for each in joined.variants),
        cut_note([variant for each in joined.variants for variant in each.variants]),
    ]
    return Several(
        joined=joined,
        members=list(map(_aggregate, joined.variants)),
        pairs=compare_pairs(joined.variants),
        notes=list(dict.fromkeys(filter(None, notes))),
        scenarios=frozenset(run.prompt.scenario for run in results if run.prompt),
    )


def _aggregate(joined: JoinedVariant) -> Aggregate:
    variants = joined.variants
    known = {
        key: [v for v in map(figure.read, variants) if v is not None and not isnan(v)]
        for key, figure in figures_in("means").items()
    }
    figures = {
        key: (score_interval if FIGURES[key].is_share else mean_interval)(values)
        for key, values in known.items()
        if values
    }
    violations, checked, bounded = _chain(variants)
    return Aggregate(
        spec=joined.spec,
        label=variants[0].label,
        figures=figures,
        head_wins=_head_wins(variants),
        violations=violations,
        checked=checked,
        bounded=bounded,
        outcomes=Counter(variant.outcome for variant in variants if variant.outcome),
        joined=joined,
    )


def _alpha_note(variants: Sequence[VariantResult]) -> str | None:
    """SPEC and params of a method without CriticalKV do not tell such runs apart."""
    bounded = [v for v in variants if "sigma_stage1" in v.analysis and not v.critical]
    alphas = set(map(QUANTITIES["stage1_alpha"].read, bounded))
    of = "sigma, theta-hat and relaxed theta of methods without CriticalKV"
    if len(alphas) > 1:
        told = sorted("not recorded" if alpha is None else f"{alpha:g}" for alpha in alphas)
        return (
            f"The runs' alphas of stage 1 differ ({', '.join(told)}), and {of} with them; average "
            "runs of one alpha to read these."
        )
    if None in alphas and len(bounded) > 1:
        return (
            f"The alpha of stage 1 is not recorded in these runs, so {of} may be means over "
            "different alphas."
        )
    return None


def _head_wins(variants: Sequence[VariantResult]) -> HeadWins | None:
    measured = [variant.perturbation for variant in variants if variant.perturbation]
    bases = [each.base_head_l1 for each in measured if each.base_head_l1 is not None]
    if not bases or len(bases) != len(variants):
        return None
    own: Values = np.mean([each.head_l1 for each in measured], axis=0, dtype=np.float64)
    base: Values = np.mean(bases, axis=0, dtype=np.float64)
    return HeadWins(own=own, base=base, n=len(variants))


def _chain(variants: Sequence[VariantResult]) -> tuple[int | None, int, int]:
    """Violations of the chain, heads with sigma over 0.5, and heads with all bounds."""
    checks = [check for check in map(check_chain, variants) if check is not None]
    violations = sum(check.violations for check in checks) if checks else None
    return violations, sum(check.covered for check in checks), sum(check.heads for check in checks)


def hidden_by_layer(variant: JoinedVariant) -> LayerMeans | None:
    """Means of the cascaded hidden L1 after each layer; None where it was not measured."""
    return _means(list(_hidden(variant).values()))


def reduction_by_layer(
    variant: JoinedVariant, variants: Sequence[JoinedVariant]
) -> LayerMeans | None:
    """Means of base minus variant over the prompts that both were run on.

    The base is the variant's own settings and budget without CriticalKV; None where it is not
    among `variants`.
    """
    if (wanted := variant.identity.base) is None:
        return None
    base = next((each for each in variants if each.identity == wanted), None)
    if base is None:
        return None
    own, plain = _hidden(variant), _hidden(base)
    return _means([plain[prompt] - own[prompt] for prompt in own if prompt in plain])


def _hidden(variant: JoinedVariant) -> dict[int, Float32Array]:
    """[layers] by prompt, of those where every layer is known."""
    measured = zip(variant.prompts, variant.variants, strict=True)
    rows = {at: each.perturbation.layer_hidden_l1 for at, each in measured if each.perturbation}
    return {at: values for at, values in rows.items() if np.isfinite(values).all()}


def _means(rows: Sequence[Float32Array]) -> LayerMeans | None:
    """Mean and interval of each layer; rows are one array per prompt."""
    return tuple(map(mean_interval, np.stack(rows, axis=-1).tolist())) if rows else None


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
    members_of: dict[tuple[Settings, str], dict[Budget, Aggregate]] = {}
    for member in members:
        identity = member.joined.identity
        if (budget := identity.budget) is not None:  # as the full cache has none
            members_of.setdefault((identity.settings, budget.unit), {})[budget] = member
    return [
        BudgetCurve(
            spec=first.joined.curve_spec,
            label=first.label,
            alpha=first.joined.alpha,
            unit=unit,
            place=first.joined.place,
            points=tuple(sorted(points.items(), key=lambda point: point[0].amount)),
        )
        for (settings, unit), points in members_of.items()
        for first in [next(iter(points.values()))]
    ]


def varied_units(curves: Sequence[BudgetCurve], key: str) -> list[str]:
    """Units in which some curve knows this figure at two budgets or more."""
    wide = {c.unit for c in curves if sum(key in each.figures for _, each in c.points) > 1}
    return [unit for unit in BUDGET_UNITS if unit in wide]
