"""Several budgets or alphas on one sample: curves, and the tables of them. No torch."""

from ckv_core.experiment.points import Curve, Row
from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.rounding import floor_sentence
from ckv_core.experiment.runs import together
from ckv_core.experiment.savings import SAVINGS_NOTE, Needs, saving_rows, savings_table
from ckv_core.experiment.table import Table
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import ANALYSIS_ARRAYS, Metric, metrics_in
from ckv_core.records.outcomes import cut_note, tally
from ckv_core.records.passages import spans_of

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
        "All points of the sweep",
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
