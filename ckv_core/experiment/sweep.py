"""Several budgets or alphas on one sample: curves, their tables, and what they save. No torch.

A curve saves where it is as good as another at a budget of its own, as in the paper's Metric 1: of
one run of one sample by each metric, of many samples by the score.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ckv_core.base.percent import percent
from ckv_core.experiment.points import POINT_METRICS, Curve, Points, Row
from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.rounding import floor_sentence
from ckv_core.experiment.runs import together
from ckv_core.experiment.sentences import budget_words
from ckv_core.experiment.stats import (
    Match,
    MatchOutcome,
    matching_budget,
    matching_range,
)
from ckv_core.experiment.table import Cell, Column, Table, text_column
from ckv_core.methods.parameters import Budget
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ANALYSIS_ARRAYS, Metric, metrics_in
from ckv_core.records.outcomes import cut_note, tally
from ckv_core.records.passages import spans_of

SAVINGS_NOTE = (
    "The smallest budget from which the method is as good as the one under Matches; linear between "
    "the budgets tried (the paper's Metric 1). Nothing to match: the other's value is 0. Only "
    "rounding: it is below the rounding floor."
)
_WORDS: dict[MatchOutcome, str] = {"nothing": "nothing to match", "rounding": "only rounding"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The budget at which one curve matches one point of another.

    Attributes:
        target_budget, value: of the point to be matched.
        n: sources that both curves have at every budget.
        tried: budgets at which the curve's value is known, rising.
        match: the budget of the curve.
        low, high: ends of its 95 % interval; None where there is none.
        is_moot: whether no point answers, so that no budget is saved at all.
    """

    curve: Curve
    target: Curve
    target_budget: Budget
    value: float
    n: int
    tried: tuple[Budget, ...]
    match: Match
    low: Match | None = None
    high: Match | None = None
    is_moot: bool = False

    @property
    def share(self) -> float | None:
        """Budget saved: 1 - needed / target; negative where more is needed."""
        needed = self.match.budget
        return None if needed is None else 1 - needed / self.target_budget.amount

    @property
    def text(self) -> str:
        """`171 tokens, 33 % less`; `5 % or less` and `over 50 %` at the ends."""
        text = self._of(self.match)
        if self.share is None or self.is_moot:
            return text
        more = f"{percent(abs(self.share))} {'less' if self.share > 0 else 'more'}"
        change = more if round(self.share, 2) else "the same"
        return f"{text}, {change}"

    @property
    def interval(self) -> str:
        """`5 % or less to 12.5 %`; empty where there is none."""
        ends = [self._of(end) for end in (self.low, self.high) if end is not None]
        return " to ".join(dict.fromkeys(ends))

    def _of(self, match: Match) -> str:
        if match.budget is None:
            smallest, largest = map(budget_words, (self.tried[0], self.tried[-1]))
            ends = {"better": f"{smallest} or less", "worse": f"over {largest}"}
            return (ends | _WORDS)[match.outcome]
        unit = self.target_budget.unit
        decimals = {"tokens": 0, "percent": 1, "mib": 2}[unit]
        return budget_words(Budget(round(match.budget, decimals), unit))


Needs = Mapping[str, Saving]  # by metric


def savings(curve: Curve, target: Curve, key: str, *, is_moot: bool = False) -> Iterator[Saving]:
    """The budgets at which a curve matches every point of another, by a metric with a better side.

    Of shares of several sources with the interval of what is needed.
    """
    own, others = (
        [(budget, row) for budget, row in each.rows if row.values(key)] for each in (curve, target)
    )
    if not (own and others) or curve.unit != target.unit:
        return
    rows = [row for _, row in (*own, *others)]
    sources = sorted(set.intersection(*(set(row.values(key)) for row in rows)), key=str)
    if not sources:
        return
    values = np.array([[row.values(key)[at] for at in sources] for row in rows])
    amounts, metric = [budget.amount for budget, _ in own], POINT_METRICS[key]
    # Sums of the same scores in another order are to be equal.
    means = [float(f"{mean:.12g}") for mean in values.mean(1)]
    for at, (budget, row) in enumerate(others, start=len(own)):
        low = high = None
        points = list(zip(amounts, means, strict=False))
        match = matching_budget(points, means[at], lower=metric.better == "lower")
        floors = row.floors.get(key, {})
        if any(row.values(key)[each] <= floors.get(each, -1.0) for each in sources):
            match = Match(None, "rounding")
        elif metric.is_share and len(sources) > 1 and match.outcome != "nothing":
            low, high = matching_range(amounts, values[: len(own)], values[at], match)
        yield Saving(
            curve=curve,
            target=target,
            target_budget=budget,
            value=float(values[at].mean()),
            n=len(sources),
            tried=tuple(each for each, _ in own),
            match=match,
            low=low,
            high=high,
            is_moot=is_moot,
        )


def saving_rows(
    pairs: Iterable[tuple[Curve, Curve]], keys: Iterable[str], *, is_moot: bool = False
) -> list[Needs]:
    """One per curve and point of its target that some metric knows, by metric."""
    rows: dict[tuple[Curve, Curve, Budget], dict[str, Saving]] = {}
    for key in keys:
        for curve, target in pairs:
            for each in savings(curve, target, key, is_moot=is_moot):
                rows.setdefault((curve, target, each.target_budget), {})[key] = each
    return [*rows.values()]


def savings_table(
    points: Points, rows: Sequence[Needs], keys: Sequence[str], **words: str
) -> Table[Needs]:
    """Budgets of equal quality, a column per metric; `words`: file, note and empty of the table."""

    def first(needs: Needs) -> Saving:
        return next(iter(needs.values()))

    def matched(needs: Needs) -> Cell:
        at = first(needs)
        return Cell(
            f"{at.target.first.name} at {budget_words(at.target_budget)}",
            at.target_budget.amount,
        )

    def needed(key: str, needs: Needs) -> Cell | None:
        saving = needs.get(key)
        if saving is None:
            return None
        ends = f" ({saving.interval})" if saving.interval else ""
        return Cell(f"{saving.text}{ends}", saving.match.budget)

    columns: list[Column[Needs]] = [
        text_column("method", "Method", lambda needs: first(needs).curve.first.name),
        text_column("matches", "Matches", matched),
        *(
            Column(
                key, f"Needs, by {POINT_METRICS[key].label}", partial(needed, key), unit="budget"
            )
            for key in keys
        ),
    ]
    if points.n > 1:
        columns.append(Column("n", "n", lambda each: first(each).n, unit="samples", form=","))
    places = [first(needs).curve.first.place for needs in rows]
    return Table(
        caption="Budget needed for equal quality",
        columns=columns,
        items=rows,
        head=points.regimes.head,
        marks=[points.marks[place] for place in places],
        places=places,
        **{"note": SAVINGS_NOTE, **words},  # type: ignore[arg-type]
    )


SWEPT = metrics_in("sweep")
MOOT_NOTE = "No point gives the answer, so an equal metric saves no budget."
POINTS_NOTE = "One prompt; L1 and KL at the first decoding step, 0 for the full cache."
MISSING_ANSWER = "The expected answer does not occur in the compressed prompt."
ORACLES = tuple(quantity for quantity in ANALYSIS_ARRAYS.values() if quantity.group == "oracle")


def matched_metrics(result: RunResult) -> list[Metric]:
    """The metrics by which one curve can match another, between points too, where any has them."""
    points = [variant for variant in result.variants if variant.method != "full"]
    matched = [each for each in SWEPT.values() if each.better and not each.is_binary]
    return [each for each in matched if any(each.read(point) is not None for point in points)]


def nobody_answers(result: RunResult) -> bool:
    """Whether an answer was looked for and no point but the full cache gives it."""
    counts = tally(result.variants)
    return counts.missed + counts.cut > 0 and not counts.answered


def curves(result: RunResult) -> list[Curve]:
    """Each method of one run over its budgets, in the order of its variants."""
    return together([result]).curves if result.variants else []


# --- tables -------------------------------------------------------------------------------


def sweep_points(result: RunResult, answer: str = "") -> Table[Row]:
    """All points; the note says where the prompt lacks the answer."""
    missing = bool(answer.strip() and result.prompt and not spans_of(result.prompt, answer))
    notes = (
        POINTS_NOTE,
        cut_note(result.variants),
        floor_sentence(result),
        MISSING_ANSWER if missing else "",
    )
    return points_table(
        together([result]),
        "All points",
        file="sweep-points.csv",
        note=" ".join(filter(None, notes)),
    )


def sweep_savings(result: RunResult, *references: object) -> Table[Needs]:
    """Which budget each line needs to match the quality of another.

    `references` are indices of the lines whose points are matched; a client may send anything.
    """
    points = together([result])
    lines, keys = points.curves, [metric.key for metric in matched_metrics(result)]
    known = [at for at in references if isinstance(at, int) and 0 <= at < len(lines)]
    pairs = [(line, lines[at]) for at in known for line in lines if line is not lines[at]]
    is_moot = nobody_answers(result)
    return savings_table(
        points,
        saving_rows(pairs, keys, is_moot=is_moot),
        keys,
        file="sweep-budgets.csv",
        note=f"{SAVINGS_NOTE} {MOOT_NOTE}" if is_moot else SAVINGS_NOTE,
        empty="One more method or alpha is needed to compare budgets.",
    )
