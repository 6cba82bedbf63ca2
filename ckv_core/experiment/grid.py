"""One sample at several budgets as a grid: what each method came to at each budget. No torch."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ckv_core.experiment.names import curve_name
from ckv_core.experiment.points import Row
from ckv_core.experiment.runs import together
from ckv_core.methods.parameters import Budget
from ckv_core.records.events import RunResult
from ckv_core.records.outcomes import State, state_of, tally
from ckv_core.records.records import Receipt, VariantResult
from ckv_core.records.variants import spec_without

_UNITS = {"percent": " %", "tokens": " tokens", "mib": " MiB"}


@dataclass(frozen=True, slots=True)
class Point:
    """One cell.

    Attributes:
        index: of the variant in its run.
        state: None while it is not known, and where no text was generated.
    """

    index: int
    variant: VariantResult
    state: State | None


@dataclass(frozen=True, slots=True)
class Line:
    """One method with one alpha.

    Attributes:
        points: one per budget of the grid; None where the method was not run at it.
    """

    name: str
    points: tuple[Point | None, ...]

    @property
    def first(self) -> Point:
        return next(point for point in self.points if point is not None)

    @property
    def states(self) -> list[State]:
        """Those that are known, by rising budget."""
        return [point.state for point in self.points if point and point.state]

    @property
    def smallest(self) -> int | None:
        """Place of the smallest budget that keeps the answer or text; None where none does."""
        kept = (at for at, point in enumerate(self.points) if point and point.state == "kept")
        return next(kept, None)

    @property
    def lost_above(self) -> int | None:
        """Place of the smallest budget above it that does not; None where all do."""
        if (least := self.smallest) is None:
            return None
        above = enumerate(self.points[least:], least)
        return next((at for at, point in above if point and point.state == "lost"), None)


@dataclass(frozen=True, slots=True)
class Grid:
    """Methods by budgets.

    Attributes:
        budgets: as requested, rising.
        by_answer: whether an answer was expected, so that it decides.
    """

    budgets: tuple[Budget, ...]
    lines: tuple[Line, ...]
    by_answer: bool

    def receipts(self, at: int) -> list[Receipt]:
        """The receipts of all points at one budget."""
        points = [line.points[at] for line in self.lines]
        return [each.variant.receipt for each in points if each and each.variant.receipt]

    @property
    def best_first(self) -> "Grid":
        """The lines by their smallest budget, then by how often they keep it."""

        def rank(line: Line) -> tuple[int, int]:
            least = line.smallest
            most = len(self.budgets)
            return (most if least is None else least, -line.states.count("kept"))

        return Grid(self.budgets, tuple(sorted(self.lines, key=rank)), self.by_answer)


def budget_words(budget: Budget) -> str:
    """`10 %`, `128 tokens`, `4 MiB`."""
    return f"{budget.amount:,g}{_UNITS[budget.unit]}"


def read_grid(result: RunResult) -> Grid:
    """A run of one sample, whole or partial, in the order of its variants."""
    by_answer = tally(result.variants).by_answer
    # Before all are selected their records do not say the same, and the SPEC alone tells.
    is_known = all(variant.receipt for variant in result.variants)
    lines: dict[Hashable, dict[Budget, Row]] = {}
    rows = together([result]).rows if result.variants else []
    alphas = {row.alpha for row in rows} - {None}
    for row in rows:
        if row.place and (budget := row.identity.budget):
            key = row.place if is_known else spec_without(row.variants[0].spec, "budget")
            lines.setdefault(key, {})[budget] = row
    budgets = _rising({each: row for rows in lines.values() for each, row in rows.items()})

    def point(row: Row | None) -> Point | None:
        if row is None:
            return None
        variant = row.variants[0]
        return Point(row.index, variant, state_of(variant, by_answer=by_answer))

    def line(of: dict[Budget, Row]) -> Line:
        first = next(iter(of.values()))
        name = first.name
        if len(alphas) == 1:  # which tells no line from another
            name = curve_name(first.label, None, spec_without(first.spec, "alpha"))
        return Line(name, tuple(point(of.get(each)) for each in budgets))

    return Grid(budgets, tuple(map(line, lines.values())), by_answer)


def _rising(rows: dict[Budget, Row]) -> tuple[Budget, ...]:
    """By amount, or by entries where units differ."""
    if len({budget.unit for budget in rows}) < 2:
        return tuple(sorted(rows, key=lambda budget: budget.amount))

    def entries(budget: Budget) -> int:
        receipt = rows[budget].variants[0].receipt
        return receipt.budget_tokens if receipt else 0

    return tuple(sorted(rows, key=entries))


def sizes(receipts: Sequence[Receipt]) -> tuple[int, int, int]:
    """Least and most bytes of these caches, and of the full cache."""
    own = [each.cache_bytes for each in receipts]
    return min(own), max(own), max(each.full_cache_bytes for each in receipts)
