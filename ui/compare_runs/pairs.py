"""Which variants of several runs belong together: the same method first, then what differs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ckv_core.request.external_selection import OWN
from ckv_core.request.identity import NOT_RECORDED, Identity, identify, told_apart
from ckv_core.request.variants import spec_without
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult


@dataclass(frozen=True, slots=True)
class Pair:
    """One variant of each run; as many as have it.

    Attributes:
        spec: what they have in common.
        variants: per run; None where it has none.
        differs: per run, what it does not have in common with the others: `budget=64`.
    """

    spec: str
    variants: tuple[VariantResult | None, ...]
    differs: tuple[str, ...]

    @property
    def method(self) -> str:
        """Of the first that has it."""
        return next(variant.method for variant in self.variants if variant is not None)

    @property
    def runs(self) -> list[int]:
        """Indices of the runs that have it."""
        return [at for at, variant in enumerate(self.variants) if variant is not None]


_Row = list[tuple[Identity, VariantResult] | None]


def pair_up(results: Sequence[RunResult]) -> list[Pair]:
    """Pairs in the order of their first variants, those of a single run among them.

    The same settings and budget are paired first; of what is left the same method, and of those
    the ones that differ least: in few parameters, then little in the budget.
    """
    rows = _same(results)
    specs = told_apart(_first_specs(rows))
    return [_pair(row, specs) for row in _merged(rows)]


def _same(results: Sequence[RunResult]) -> list[_Row]:
    """Rows of variants that are the same by all that decides their outcome."""
    known: dict[str, set[Identity]] = {}
    for variant in (variant for result in results for variant in result.variants):
        if not (found := identify(variant)).settings.unknown:
            known.setdefault(variant.spec, set()).add(found)

    def row_of(variant: VariantResult) -> Identity:
        own, same = identify(variant), known.get(variant.spec, set())
        waits = (
            bool(own.settings.unknown) and variant.receipt is None
        )  # not selected, so no parameters
        return next(iter(same)) if waits and len(same) == 1 else own

    rows: dict[Identity, _Row] = {}
    for at, result in enumerate(results):
        for variant in result.variants:
            identity = row_of(variant)
            rows.setdefault(identity, [None] * len(results))[at] = (identity, variant)
    return list(rows.values())


def _merged(rows: list[_Row]) -> list[_Row]:
    """Incomplete rows of one method joined: with the first run's first, the nearest ones first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        if None in row:
            identity, variant = _first(row)
            label = variant.label if variant.method == OWN else ""
            groups.setdefault((identity.settings.name, label), []).append(index)
    near = sorted(
        (
            not (rows[one][0] or rows[other][0]),
            _distance(_first(rows[one])[0], _first(rows[other])[0]),
            one,
            other,
        )
        for group in groups.values()
        for one, other in combinations(group, 2)
    )
    joined = list(range(len(rows)))  # the row that now holds what was in this one
    for *_, one, other in near:
        into, out = sorted((joined[one], joined[other]))
        if into != out and not any(a and b for a, b in zip(rows[into], rows[out], strict=True)):
            rows[into] = [a or b for a, b in zip(rows[into], rows[out], strict=True)]
            joined = [into if at == out else at for at in joined]
    return [row for at, row in enumerate(rows) if joined[at] == at]


def _distance(one: Identity, other: Identity) -> tuple[int, bool, float]:
    """How many parameters differ, whether budgets are of different units, and their ratio."""
    left, right = dict(one.settings.parameters), dict(other.settings.parameters)
    parameters = sum(left.get(key) != right.get(key) for key in left.keys() | right.keys())
    if one.budget is None or other.budget is None:
        return parameters, one.budget != other.budget, 1.0
    amounts = sorted((one.budget.amount, other.budget.amount))
    return parameters, one.budget.unit != other.budget.unit, amounts[1] / amounts[0]


def _pair(row: _Row, specs: dict[Identity, str]) -> Pair:
    own = [{} if each is None else _parameters(each[0]) for each in row]
    there = [parameters for each, parameters in zip(row, own, strict=True) if each is not None]
    differing = [key for key in there[0] if len({each.get(key, "") for each in there}) > 1]
    first = specs[_first(row)[0]]
    return Pair(
        spec=spec_without(first, *differing) if differing else first,
        variants=tuple(None if each is None else each[1] for each in row),
        differs=tuple(
            ", ".join(f"{key}={parameters[key]}" for key in differing if key in parameters)
            for parameters in own
        ),
    )


def _parameters(identity: Identity) -> dict[str, str]:
    """All that decides the outcome as text, the budget first."""
    budget = {"budget": str(identity.budget)} if identity.budget else {}
    return budget | {
        key: NOT_RECORDED if value is None else str(value)
        for key, value in identity.settings.parameters
    }


def _first(row: _Row) -> tuple[Identity, VariantResult]:
    return next(each for each in row if each is not None)


def _first_specs(rows: Sequence[_Row]) -> dict[Identity, str]:
    return {identity: variant.spec for identity, variant in map(_first, rows)}
