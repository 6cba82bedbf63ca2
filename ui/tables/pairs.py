"""Table of variants compared prompt by prompt: with their base, and with the full cache."""

from typing import Any

from ckv_core.analysis.pairs import COMPARED, Pair
from ckv_core.experiment.stats import Difference, Interval
from ckv_core.results.figures import FIGURES
from ui.tables.aggregate import AggregatedRuns, variant_name
from ui.tables.data_table import Cells, column, data_table, table_row, text_column

NOTE = (
    "The variant's value minus the other's on the same prompts: mean, and 95 % interval "
    "(Tango's for shares and scores, else Student's); one that holds 0 shows no difference. Below "
    "the rounding floor: rounding alone moves the full cache as far. Yes or no: prompts that "
    "gained (+) and lost (-) it, and two-sided p of the exact McNemar test. Each p is of its pair "
    "alone; of many pairs some are small by chance."
)


def shown_interval(interval: Interval, *, is_share: bool) -> str:
    """`1.2 (1.1 to 1.3)`, or the mean alone where there is no interval or one prompt."""

    def text(value: float) -> str:
        return f"{value:z.1%}" if is_share else f"{value:z,.4g}"

    if interval.low is None or interval.high is None or interval.n == 1:
        return text(interval.mean)
    return f"{text(interval.mean)} ({text(interval.low)} to {text(interval.high)})"


def pairs_table(runs: AggregatedRuns) -> dict[str, Any]:
    """Value of the DataTable: one row per pair; the file has intervals, counts and p apart."""
    pairs, looks = runs.pairs, runs.looks
    keys = [key for key in COMPARED if any(key in pair.figures for pair in pairs)]
    columns = [text_column("variant", "Variant"), text_column("other", "Minus")]
    for key in keys:
        columns.append(column(key, COMPARED[key], "difference"))
        columns += [
            column(f"{key}_{part}", f"{COMPARED[key]} {part}", hidden=True)
            for part in ("low", "high", "lower", "higher", "level", "p", "n")
        ]
    return data_table(
        "Compared prompt by prompt",
        columns,
        [table_row(_cells(pair), looks[pair.variant.place]) for pair in pairs],
        file="pairs.csv",
        note=NOTE if pairs else "No variant was run with its base or the full cache.",
    )


def _cells(pair: Pair) -> Cells:
    cells: Cells = {
        "variant": {"text": variant_name(pair.variant)},
        "other": {"text": variant_name(pair.other)},
    }
    for key, difference in pair.figures.items():
        text = _shown(key, difference)
        text += "" if difference.mean.n == pair.variant.n else f", n = {difference.mean.n}"
        cells[key] = {"text": text, "value": difference.mean.mean}
        parts = {
            "low": difference.mean.low,
            "high": difference.mean.high,
            "p": difference.p,
            "n": difference.mean.n,
        }
        parts |= {"lower": difference.lower, "higher": difference.higher, "level": difference.level}
        cells |= {f"{key}_{part}": {"value": value} for part, value in parts.items()}
    return cells


def _shown(key: str, difference: Difference) -> str:
    if difference.p is not None:
        return f"+{difference.higher} -{difference.lower}, p = {difference.p:.2g}"
    shown = shown_interval(difference.mean, is_share=FIGURES[key].is_share)
    return shown + difference.level_note
