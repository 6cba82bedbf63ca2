"""The decision of a run of many samples and its scores, as the DataTable has them. No Gradio."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from ckv_core.experiment import sentences
from ckv_core.experiment.decide import PointDecision
from ckv_core.experiment.points import Row, baseline_name
from ckv_core.experiment.reading import Decision, MethodDecision, Reading
from ckv_core.experiment.runs import point_of
from ckv_core.experiment.stats import Interval
from ckv_core.experiment.table import Cell, Column, Table, text_column
from ckv_core.records.records import Outcome
from ui.tables.csv_text import csv_text
from ui.tables.samples import cell_address, points_column, with_looks

NO_RESULT = "There is no result yet."
_SIGNS: dict[str, Outcome] = {"keeps": "answered", "loses": "missed"}
_LOSSES = {
    "loss": ("Loss", "points"),
    "at_most": ("Loses at most", "points, 95 %"),
    "at_least": ("Loses at least", "points, 95 %"),
}


class _Line(NamedTuple):
    """A method at one of its budgets, or at the one below that which it keeps."""

    method: MethodDecision
    budget: str
    tolerance: float
    is_below: bool = False

    @property
    def found(self) -> PointDecision:
        return self.method.points[self.budget]

    @property
    def state(self) -> str:
        is_open = self.method.outcome == "unmeasured" or self.found.loss is None
        return "unmeasured" if is_open else self.found.state

    @property
    def name(self) -> Cell:
        name = f"at {sentences.budget_words(self.budget)}" if self.is_below else self.method.name
        return Cell(name, f"{self.method.name} {name}" if self.is_below else name)

    @property
    def decision(self) -> Cell:
        words = sentences.pill(self.state, self.budget, self.tolerance)
        return Cell(words, outcome=_SIGNS.get(self.state, "none"), title=self.method.sentence)

    @property
    def why(self) -> str:
        return "" if self.state == "unmeasured" else sentences.why(self.budget, self.found)

    def loss(self, key: str) -> float | None:
        share: float | None = getattr(self.found, key)
        return None if self.state == "unmeasured" and key == "at_most" else share


def decision_line(decision: Decision) -> dict[str, Any]:
    """The decision on the best method in the few words of a list of runs."""
    line = _Line(decision.methods[0], decision.methods[0].budget, decision.tolerance)
    pill = line.decision
    name, more = line.method.name, f"more than {sentences.points(decision.tolerance)}"
    words = {
        "keeps": f"{name} {pill.text.lower()}",
        "loses": f"All lose {more}" if len(decision.methods) > 1 else f"{name} loses {more}",
    }
    return {
        "outcome": pill.outcome,
        "words": words.get(line.state, pill.text),
        "more": line.why,
        "title": decision.headline,
    }


def decision_table(reading: Reading) -> dict[str, Any]:
    """Value of the DataTable of methods, best first, each with its decision and why."""
    lines = list(_lines(reading))
    table: Table[_Line] = Table(
        caption="The decision, method by method",
        columns=[
            text_column("method", "Method", lambda line: line.name),
            text_column("decision", "Decision", lambda line: line.decision),
            text_column("why", "Why", lambda line: line.why),
        ],
        items=lines,
        file="study-decision.csv",
        empty=NO_RESULT,
    )
    value = with_looks(reading, table, [line.method.variant for line in lines])
    for line, row in zip(lines, value["rows"], strict=True):
        if line.is_below:  # it stands below its method
            row |= {"look": None, "regime": "", "below": True}
    return value


def _lines(reading: Reading) -> Iterator[_Line]:
    tolerance = reading.decision.tolerance
    for method in reading.decision.methods:
        yield _Line(method, method.budget, tolerance)
        budgets = [*method.points]
        at = budgets.index(method.budget)
        if method.outcome == "keeps" and at:
            yield _Line(method, budgets[at - 1], tolerance, is_below=True)


def bounds_table(reading: Reading) -> dict[str, Any]:
    """Value of the DataTable of methods and budgets with their bounds."""
    decision = reading.decision
    name = baseline_name(reading.points.baseline) if reading.points.baseline else ""
    note = sentences.against(sentences.decision_note(decision.tolerance, decision.n), name)
    lines = [_Line(m, budget, decision.tolerance) for m in decision.methods for budget in m.points]
    columns: list[Column[_Line]] = [
        text_column("method", "Method", lambda line: line.method.name),
        Column(
            "budget", "Budget", lambda line: sentences.budget_words(line.budget), unit="requested"
        ),
        text_column("outcome", "Outcome", lambda line: sentences.STATES[line.state]),
        *(
            points_column(key, label, partial(_Line.loss, key=key), unit)
            for key, (label, unit) in _LOSSES.items()
        ),
        Column(
            "needed",
            "Decided by about",
            lambda line: line.found.needed,
            unit="samples in all",
            form=",",
        ),
    ]
    table = Table(
        caption="The bounds of every method and budget",
        columns=columns,
        items=lines,
        file="study-bounds.csv",
        note=note,
        empty=NO_RESULT,
    )
    return with_looks(reading, table, [line.method.variant for line in lines])


def bounds_csv(reading: Reading) -> str:
    """The same as a file."""
    value = bounds_table(reading)
    keys = [column["key"] for column in value["columns"]]
    empty: dict[str, Any] = {"text": "", "value": None}

    def field(cell: dict[str, Any]) -> Any:
        return cell["text"] if cell["value"] is None else cell["value"]

    rows = [tuple(field(row["cells"].get(key, empty)) for key in keys) for row in value["rows"]]
    return csv_text(keys, rows)


def scores_table(reading: Reading) -> dict[str, Any]:
    """Value of the DataTable of scores: a row a method, best first, and a column a budget.

    A score leads to its samples.
    """
    rows: dict[str, dict[str, Row]] = {}
    for row in reading.points.rows:
        rows.setdefault(row.curve_spec, {})[str(row.budget or "")] = row
    _, *points = reading.study.points()
    budgets = list(dict.fromkeys(point.budget or "" for point in points))
    order = {m.variant: at for at, m in enumerate(reading.decision.methods, 1)}
    variants = sorted(rows, key=lambda variant: order.get(variant, 0))
    *_, largest = budgets

    def at(budget: str, variant: str) -> Row | None:
        own = rows[variant]
        return own.get(budget) or (own.get("") if budget == largest else None)

    def score(budget: str, variant: str) -> Cell | None:
        row = at(budget, variant)
        mean = row.mean("score") if row else None
        if row is None or mean is None:
            return None
        href = cell_address(reading.slug, point_of(row))
        return Cell(f"{100 * mean.mean:.0f}", mean.mean, href=href, more=_ends(mean))

    def strip(variant: str) -> Cell | None:
        row = at(largest, variant)
        mean = row.mean("score") if row else None
        ends = [each or 0.0 for each in (mean.low, mean.mean, mean.high)] if mean else []
        return Cell("", mean.mean, strip=ends) if mean else None

    short = sentences.budget_words(largest)
    columns: list[Column[str]] = [
        text_column("method", "Method", lambda variant: reading.names[variant]),
        *(
            Column(f"b{at}", sentences.budget_words(budget), partial(score, budget))
            for at, budget in enumerate(budgets)
        ),
        text_column("strip", f"At {short}, from 0 to 100", strip),
    ]
    table = Table(
        caption="Scores by method and budget",
        columns=columns,
        items=variants,
        file="study-scores.csv",
        note=_scores_note(reading),
        empty=NO_RESULT,
    )
    value = with_looks(reading, table, variants)
    # The decision above marks each method with its regime.
    return value | {"head": "", "rows": [row | {"regime": ""} for row in value["rows"]]}


def _ends(mean: Interval) -> str:
    if mean.low is None or mean.high is None or mean.n == 1:
        return ""
    return f"{100 * mean.low:.0f}–{100 * mean.high:.0f}"  # noqa: RUF001 - a range


def _scores_note(reading: Reading) -> str:
    counts = {
        word: sum(row.outcomes.get(word, 0) for row in reading.points.rows)
        for word in ("cut", "failed")
    }
    return (
        "Mean score in points of 100 with its 95 % interval. "
        f"Results cut: {counts['cut']:,}, failed: {counts['failed']:,}."
    )
