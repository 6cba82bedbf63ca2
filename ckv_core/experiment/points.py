"""The one long table: what each sample measured of each method and budget, and their means.

Runs of one sample (`runs.together`) and of many (`samples.read_results`) are read as this.
No torch.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ckv_core.experiment.regimes import Regimes, regimes_of
from ckv_core.experiment.sentences import budget_words
from ckv_core.experiment.stats import (
    Difference,
    Interval,
    holm,
    mean_interval,
    paired,
    score_interval,
)
from ckv_core.methods.parameters import Budget
from ckv_core.records.identity import Identity, Settings
from ckv_core.records.metrics import Metric, metrics_in
from ckv_core.records.records import Outcome, VariantResult

Values = Mapping[Hashable, float]  # by source
SCORE = Metric(
    key="score",
    label="Score",
    definition="What the run's metric gives, 0 to 1 (100 %). A cut or failed text has none.",
    unit="1",
    group="outcome",
    read=lambda _: None,
    better="higher",
    has_own_full=True,
    places=frozenset({"sweep", "means"}),
)
POINT_METRICS: dict[str, Metric] = {SCORE.key: SCORE, **metrics_in("means")}
# What a pair is compared in: what says how close to the full cache, or to the answer, it is.
COMPARED = tuple(
    key for key, metric in POINT_METRICS.items() if metric.better and "sweep" in metric.places
)
# Budgets of different units share no axis. Unit of `Budget` -> what an axis says.
BUDGET_UNITS = {
    "tokens": "tokens per KV head",
    "percent": "percent of the compressed prompt",
    "mib": "MiB of the evicted cache",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One variant at one budget over its samples.

    Attributes:
        identity: what decides its outcome.
        name: what a reader sees, without the budget.
        spec: one of its SPECs, with what distinguishes it from its namesakes.
        curve_spec: the same without its budget; of all budgets of these settings.
        place: of these settings among all, from 1 on; the full cache's is 0.
        n: sources that it was run on; samples of one source are not independent.
        budget: as requested; of one sample whose run mixes units in tokens, as resolved. None of
            what takes none.
        read: key of `POINT_METRICS` -> value by source; of a source the mean over its samples.
        floors: by key and source, what rounding alone moves.
        outcomes: samples by what their text came to.
        memory: mean bytes of its cache and of the full cache.
        same: texts that are the full cache's token by token, of how many.
        variants: records of runs of one sample; of a run of many one without results.
        index: of the newest of them in its run.
    """

    identity: Identity
    name: str
    label: str
    method: str
    spec: str
    curve_spec: str
    place: int
    n: int
    budget: Budget | None
    read: Callable[[str], Values]
    outcomes: Mapping[Outcome, int]
    memory: tuple[float, float] | None
    same: tuple[int, int] | None = None
    floors: Mapping[str, Values] = field(default_factory=dict)
    variants: tuple[VariantResult, ...] = ()
    index: int = 0
    _known: dict[str, Values] = field(default_factory=dict)

    def values(self, key: str) -> Values:
        """One metric by source, of those that know it."""
        if key not in self._known:
            self._known[key] = self.read(key)
        return self._known[key]

    def mean(self, key: str) -> Interval | None:
        """The mean over the sources with its interval; None where no source knows it."""
        interval = score_interval if POINT_METRICS[key].is_share else mean_interval
        return interval([*known.values()]) if (known := self.values(key)) else None

    @property
    def tokens(self) -> str:
        """`395 tokens`: a budget of one sample that was requested in another unit; else empty."""
        requested, receipt = self.identity.budget, self.variants and self.variants[0].receipt
        if self.n > 1 or not receipt or not requested or requested.unit == "tokens":
            return ""
        return budget_words(Budget(float(receipt.budget_tokens), "tokens"))

    @property
    def alpha(self) -> float | None:
        """None where the method takes none."""
        return self.identity.settings.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One row minus another on the same sources.

    Attributes:
        other: the base (the same settings and budget without CriticalKV) or the baseline.
        differences: by key of COMPARED; only those that both know of some source.
    """

    row: Row
    other: Row
    differences: dict[str, Difference]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One method with the same settings over the budgets that are requested, in one unit.

    Attributes:
        unit: of `BUDGET_UNITS`.
        rows: by rising budget.
    """

    unit: str
    rows: tuple[tuple[Budget, Row], ...]

    @property
    def first(self) -> Row:
        return self.rows[0][1]

    def means(self, key: str) -> list[tuple[Budget, Interval]]:
        """(budget, mean) of the rows that know a metric."""
        return [(budget, mean) for budget, row in self.rows if (mean := row.mean(key))]


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """All rows of what is read together.

    Attributes:
        model: its name.
        n: sources.
        rows: one per variant and budget, the full cache among them.
        notes: sentences on what limits the means.
        scenarios: of the samples.
        against: SPEC of the row that the others are compared with.
    """

    model: str
    n: int
    rows: Sequence[Row]
    notes: Sequence[str]
    scenarios: frozenset[str]
    against: str = ""

    @property
    def baseline(self) -> Row | None:
        """The full cache's row unless another was chosen; None where it is not there."""
        chosen = (row for row in self.rows if row.spec == self.against and row.place)
        return next(chosen, next((row for row in self.rows if not row.place), None))

    @cached_property
    def pairs(self) -> list[Pair]:
        """Each row against its base, then each against the baseline; p adjusted over all.

        Against the full cache only in metrics that it has of its own; in others it is at 0 or 1.
        """
        by_identity = {row.identity: row for row in self.rows}
        baseline = self.baseline
        own = [key for key in COMPARED if POINT_METRICS[key].has_own_full]
        found = [
            _pair(row, by_identity[base], COMPARED)
            for row in self.rows
            if (base := row.identity.base) in by_identity and base is not None
            if by_identity[base] is not baseline
        ]
        if baseline is not None:
            found += [
                _pair(row, baseline, COMPARED if baseline.place and row.place else own)
                for row in self.rows
                if row is not baseline
            ]
        pairs = [pair for pair in found if pair.differences]
        for key in COMPARED:
            tested = [
                pair for pair in pairs if getattr(pair.differences.get(key), "p", None) is not None
            ]
            p_values = [pair.differences[key].p or 0.0 for pair in tested]
            for pair, adjusted in zip(tested, holm(p_values), strict=True):
                pair.differences[key] = replace(pair.differences[key], holm_p=adjusted)
        return pairs

    @property
    def regimes(self) -> Regimes:
        """Of the rows, in their order."""
        return regimes_of([row.method for row in self.rows], self.scenarios)

    @property
    def marks(self) -> dict[int, str]:
        """The regime by the place of the settings, where there are both."""
        pairs = zip(self.rows, self.regimes.marks, strict=True)
        return {row.place: mark for row, mark in pairs}

    @property
    def curves(self) -> list[Curve]:
        """In the order of the rows; what takes no budget is in none."""
        rows_of: dict[tuple[Settings, str], dict[Budget, Row]] = {}
        for row in self.rows:
            if (budget := row.budget) is not None:
                rows_of.setdefault((row.identity.settings, budget.unit), {}).setdefault(budget, row)
        return [
            Curve(unit=unit, rows=tuple(sorted(rows.items(), key=lambda row: row[0].amount)))
            for (_, unit), rows in rows_of.items()
        ]


def with_bases(curves: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Each curve with CriticalKV and the same settings without, where both are there."""
    found = {(curve.first.identity.settings, curve.unit): curve for curve in curves}
    return [
        (curve, found[base.settings, curve.unit])
        for curve in curves
        if (base := curve.first.identity.base) and (base.settings, curve.unit) in found
    ]


def varied_units(curves: Sequence[Curve], key: str) -> list[str]:
    """Units in which some curve knows a metric at two budgets or more."""
    wide = {curve.unit for curve in curves if len(curve.means(key)) > 1}
    return [unit for unit in BUDGET_UNITS if unit in wide]


def baseline_name(row: Row) -> str:
    """`SnapKV at 20 %`; of the full cache its name."""
    return f"{row.name} at {budget_words(row.budget)}" if row.budget else row.name


def _pair(row: Row, other: Row, keys: Sequence[str]) -> Pair:
    known: dict[str, Difference] = {}
    for key in keys:
        own, theirs, metric = row.values(key), other.values(key), POINT_METRICS[key]
        is_yes_no = metric.has_own_full and {*own.values(), *theirs.values()} <= {0.0, 1.0}
        floors = [each.floors.get(key, {}) for each in (row, other)]
        found = paired(own, theirs, is_share=metric.is_share, is_yes_no=is_yes_no, floors=floors)
        if found is not None:
            known[key] = found
    return Pair(row=row, other=other, differences=known)
