"""The table of points, a row per method and budget, and the same as JSON and long CSV. No torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.percent import percent
from ckv_core.experiment.points import (
    COMPARED,
    POINT_METRICS,
    Pair,
    Points,
    Row,
    baseline_name,
)
from ckv_core.experiment.sentences import budget_words
from ckv_core.experiment.stats import Difference, Interval
from ckv_core.experiment.summary import TIMES, time_cell
from ckv_core.experiment.table import Cell, Column, Table, metric_column, text_column
from ckv_core.records.metrics import METRICS, Metric, metrics_in
from ckv_core.records.outcomes import outcome_word
from ckv_core.records.records import Outcome

MIB = 2**20
NOTE = (
    "A row is a method at a budget, over its samples: mean and 95 % interval (Wilson's for shares "
    "and scores, else Student's). To compare two rows, read a column with a minus: the difference "
    "on the same samples, with Tango's interval for shares and scores. Of what is right or wrong "
    "it counts samples gained (+) and lost (-). The first p is the exact McNemar test's, the "
    "second is corrected for all rows (Holm). The base is the same method and settings without "
    "CriticalKV."
)
_OUTCOMES: dict[Outcome, str] = {
    "answered": "Generations that hold the expected answer.",
    "missed": "Generations that ended without the expected answer.",
    "cut": "The limit of new tokens ended the text before the answer: neither right nor wrong.",
    "failed": "Generations that failed, which are neither right nor wrong.",
}
_SCORES = ("score", "answer", "agreement")
_MECHANISM = ("head", "final")


def points_table(
    points: Points,
    caption: str = "Every method and budget",
    *,
    file: str = "",
    note: str = NOTE,
    link: Callable[[Row], str] = lambda _: "",
) -> Table[Row]:
    """A row per method and budget, the columns in which something is known, the extra ones last.

    `link`: where a score leads to.
    """
    many = points.n > 1
    # Of one sample the outcome says what these two do.
    left_out = () if many else ("answer", "exact_match")
    scores = [_mean(POINT_METRICS[key], link=link) for key in _SCORES if key not in left_out]
    moved = [_mean(POINT_METRICS[key]) for key in _MECHANISM]
    shown = set() if many else set(metrics_in("sweep"))
    others = [
        f for key, f in POINT_METRICS.items() if key not in (*_SCORES, *_MECHANISM, *left_out)
    ]
    every: tuple[Column[Row], ...] = (
        text_column("variant", "Method", lambda row: row.name),
        Column(
            "budget",
            "Budget",
            _budget,
            unit="requested",
        ),
        *(_counts(points) if many else (_OUTCOME,)),
        *scores,
        *((_SAME_TEXT,) if many else ()),
        _MEMORY,
        *moved,
        *(_mean(metric, is_extra=metric.key not in shown) for metric in others),
        *(_differences(points) if many else ()),
        text_column("spec", "SPEC", lambda row: row.spec, is_extra=True),
    )
    return Table(
        caption=caption,
        columns=[column for column in every if any(map(column.cell, points.rows))],
        items=points.rows,
        file=file,
        head=points.regimes.head,
        note=note,
        empty="The points appear here as they are measured.",
        marks=points.regimes.marks,
        places=[row.place for row in points.rows],
    )


def interval_text(
    interval: Interval, *, is_share: bool, is_signed: bool = False, is_bytes: bool = False
) -> str:
    """`1.2 (1.1 to 1.3)`, or the mean alone where there is no interval or one prompt."""

    def text(value: float) -> str:
        if is_bytes:
            return human_bytes(round(value))
        sign = "+" if is_signed else ""
        return percent(value, 1, sign) if is_share else f"{value:{sign}z,.4g}"

    if interval.low is None or interval.high is None or interval.n == 1:
        return text(interval.mean)
    return f"{text(interval.mean)} ({text(interval.low)} to {text(interval.high)})"


def difference_text(key: str, difference: Difference) -> str:
    """The mean with its interval; of yes or no also `+2 -1, p = 1`."""
    text = interval_text(difference.mean, is_share=POINT_METRICS[key].is_share, is_signed=True)
    if difference.p is None:
        return text + difference.level_note
    after = f", {difference.holm_p:.2g} after Holm" if difference.holm_p != difference.p else ""
    return f"{text}; +{difference.higher} -{difference.lower}, p = {difference.p:.2g}{after}"


def _budget(row: Row) -> Cell | None:
    if row.budget is None:
        return None
    return Cell(budget_words(row.identity.budget), row.budget.amount, more=row.tokens)


def _outcome(row: Row) -> Cell | None:
    word = outcome_word(row.variants[0])
    return Cell(word, float(bool(row.variants[0].is_right))) if word else None


_OUTCOME = text_column("outcome", "Outcome", _outcome, definition=METRICS["answer"].definition)
_SAME_TEXT: Column[Row] = Column(
    "same",
    "Same text",
    lambda row: Cell(f"{row.same[0]} of {row.same[1]}", row.same[0]) if row.same else None,
    unit="as the full cache",
    definition="Generations that are the full cache's, token by token.",
)


def _counts(points: Points) -> Iterator[Column[Row]]:
    def count(word: Outcome, row: Row) -> int:
        return row.outcomes.get(word, 0)

    yield Column("n", "n", lambda row: row.n, unit="samples", form=",")
    known = {word for row in points.rows for word in row.outcomes}
    shown = known | {"answered", "missed"} if known & {"answered", "missed", "cut"} else known
    for word, definition in _OUTCOMES.items():
        if word in shown:
            label, read = word.capitalize(), partial(count, word)
            yield Column(word, label, read, unit="samples", definition=definition, form=",")


def _mean(
    metric: Metric, *, is_extra: bool = False, link: Callable[[Row], str] = lambda _: ""
) -> Column[Row]:
    def read(row: Row) -> Cell | None:
        mean = row.mean(metric.key)
        if mean is None:
            return None
        if metric.key in TIMES and row.n == 1:
            return time_cell(metric, row.variants[0])
        text = interval_text(mean, is_share=metric.is_share, is_bytes=metric.unit == "bytes")
        text += _of(mean, row)
        return Cell(text, mean.mean, href=link(row) if metric.key == "score" else "")

    return metric_column(metric, read, label=metric.mean_label, is_extra=is_extra)


def _of(mean: Interval, row: Row) -> str:
    """How many sources a mean is of, where it is not of all that the variant was run on."""
    return "" if mean.n == row.n else f", n = {mean.n}"


def _memory(row: Row) -> Cell | None:
    if row.memory is None:
        return None
    mean, full = row.memory
    return Cell(f"{mean / MIB:,.2f} ({percent(mean / full, 1)})", mean / MIB)


_MEMORY = Column(
    "memory",
    "Memory (MiB)",
    _memory,
    unit="share of the full cache",
    definition=METRICS["cache_bytes"].definition,
)


def _differences(points: Points) -> Iterator[Column[Row]]:
    """Each compared metric minus the baseline's, then minus the base's."""
    baseline = points.baseline
    words_of = {"full": "the full cache's", "base": "the base's"}
    if baseline is not None and baseline.place:
        words_of["full"] = f"{baseline_name(baseline)}'s"
    for kind, words in words_of.items():
        own = (pair for pair in points.pairs if (pair.other is baseline) == (kind == "full"))
        pairs = {pair.row.spec: pair for pair in own}
        yield from (_difference(key, f"{key}_{kind}", words, pairs) for key in COMPARED)


def _difference(key: str, name: str, words: str, pairs: dict[str, Pair]) -> Column[Row]:
    def read(row: Row) -> Cell | None:
        pair = pairs.get(row.spec)
        difference = pair.differences.get(key) if pair else None
        if difference is None:
            return None
        text = difference_text(key, difference) + _of(difference.mean, row)
        return Cell(text, difference.mean.mean)

    return Column(
        name,
        f"{POINT_METRICS[key].label} minus {words}",
        read,
        unit="on the same samples",
        definition=POINT_METRICS[key].definition,
        is_extra=key != "score",  # whose differences stand in the table itself
    )


def points_json(points: Points) -> dict[str, Any]:
    """Every mean, interval and difference; docs/reference/result_json.md describes it."""
    rows = {row.spec: at for at, row in enumerate(points.rows)}
    return {
        "schema": 1,
        "kind": "means",
        "model": points.model,
        "n": points.n,
        "notes": list(points.notes),
        "variants": [
            {
                "spec": row.spec,
                "label": row.label,
                "n": row.n,
                "metrics": {key: asdict(mean) for key in POINT_METRICS if (mean := row.mean(key))},
                "outcomes": dict(row.outcomes),
            }
            for row in points.rows
        ],
        "pairs": [
            {
                "variant": rows[pair.row.spec],
                "other": rows[pair.other.spec],
                "metrics": differences_json(pair),
            }
            for pair in points.pairs
        ],
    }


def differences_json(pair: Pair) -> dict[str, Any]:
    """By key of a metric: the interval, then how many sources moved which way, and p."""
    found = {key: asdict(each) for key, each in pair.differences.items()}
    return {key: each.pop("mean") | each for key, each in found.items()}


Line = tuple[Any, ...]
_CSV_HEAD = (
    *("spec", "budget", "budget_unit", "metric", "label", "unit", "minus"),
    *("mean", "low", "high", "samples", "lower", "higher", "level", "p", "holm_p"),
)


def csv_rows(points: Points) -> tuple[Sequence[str], list[Line]]:
    """Head and lines of the long table: every mean, then every difference of a pair."""

    def line(row: Row, key: str, minus: str, mean: Interval, *more: float | None) -> Line:
        budget = (f"{row.budget.amount:.10g}", row.budget.unit) if row.budget else ("", "")
        words = (key, POINT_METRICS[key].mean_label, POINT_METRICS[key].unit_name, minus)
        return (row.spec, *budget, *words, mean.mean, mean.low, mean.high, mean.n, *more)

    means = [
        line(row, key, "", mean, *(None,) * 5)
        for row in points.rows
        for key in POINT_METRICS
        if (mean := row.mean(key))
    ]
    moved = [
        line(pair.row, key, pair.other.spec, d.mean, d.lower, d.higher, d.level, d.p, d.holm_p)
        for pair in points.pairs
        for key, d in pair.differences.items()
    ]
    return _CSV_HEAD, [*means, *moved]
