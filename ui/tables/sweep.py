"""Tables of several budgets or alphas on one sample."""

from typing import Any

import numpy as np

from ckv_core.experiment import names
from ckv_core.experiment.rounding import floor_sentence
from ckv_core.experiment.runs import together
from ckv_core.experiment.savings import saving_rows
from ckv_core.experiment.sweep import AlphaOptimum, alpha_optima, matched_metrics, nobody_answers
from ckv_core.experiment.verdict import alpha_outcome
from ckv_core.records.events import RunResult
from ckv_core.records.outcomes import cut_note
from ckv_core.records.passages import spans_of
from ckv_core.records.variants import VariantSpec
from ui.tables.data_table import column, data_table, figure, table_row, text_column
from ui.tables.points import SAVINGS_NOTE, points_value, savings_value

MOOT_NOTE = "No point gives the answer, so an equal metric saves no budget."
POINTS_NOTE = "One prompt; L1 and KL at the first decoding step, 0 for the full cache."
MISSING_ANSWER = "The expected answer does not occur in the compressed prompt."


def points_table(result: RunResult, answer: str) -> dict[str, Any]:
    """Value of the DataTable of all points; it says where the prompt lacks the answer."""
    missing = bool(answer.strip() and result.prompt and not spans_of(result.prompt, answer))
    notes = (
        POINTS_NOTE,
        cut_note(result.variants),
        floor_sentence(result),
        MISSING_ANSWER if missing else "",
    )
    return points_value(
        together([result]),
        "All points of the sweep",
        "sweep-points.csv",
        note=" ".join(filter(None, notes)),
    )


def savings_table(result: RunResult, reference: object) -> dict[str, Any]:
    """Which budget each line needs to match another's quality, as a DataTable.

    `reference` is the index of the line whose points are matched; a client may send anything.
    """
    points = together([result])
    lines, keys = points.curves, [metric.key for metric in matched_metrics(result)]
    known = isinstance(reference, int) and 0 <= reference < len(lines)
    target = lines[reference] if known else None  # type: ignore[call-overload]
    pairs = [(line, target) for line in lines if target is not None and line is not target]
    is_moot = nobody_answers(result)
    return savings_value(
        points,
        saving_rows(pairs, keys, is_moot=is_moot),
        keys,
        file="sweep-budgets.csv",
        note=f"{SAVINGS_NOTE} {MOOT_NOTE}" if is_moot else SAVINGS_NOTE,
        empty="One more method or alpha is needed to compare budgets.",
    )


def optimum_name(optimum: AlphaOptimum) -> str:
    """Method and budget over whose alphas the best was sought."""
    method = names.curve_name(VariantSpec.parse(optimum.spec).label, None, optimum.spec)
    return f"{method}, budget {optimum.budget}"


def alphas_table(result: RunResult) -> dict[str, Any]:
    """Value of the DataTable of the best alphas, a row per method and budget.

    A gain is the share of the best fixed alpha's summed head L1 that hindsight would save.
    """
    rows = []
    for optimum in alpha_optima(result):
        heads = int((~np.isnan(optimum.head_alpha)).sum())
        tried = ", ".join(f"{alpha:g}" for alpha in optimum.alphas)
        gains = {"layers": optimum.layer_gain, "heads": optimum.head_gain}
        cells = {
            "method": {"text": optimum_name(optimum)},
            "tried": {"text": tried},
            "fixed": figure(optimum.best_fixed, "{:g}"),
            **{key: figure(gain, "{:z.1%}") for key, gain in gains.items()},
            "n": figure(float(heads), "{:,.0f}"),
            "outcome": {"text": alpha_outcome(result, optimum)},
        }
        rows.append(table_row(cells))
    return data_table(
        "Best alphas",
        [
            text_column("method", "Method and budget"),
            text_column("tried", "Alphas tried"),
            column("fixed", "Alpha of least head L1"),
            text_column("outcome", "Outcome at it"),
            column("layers", "Gain, an alpha per layer", "head L1 saved"),
            column("heads", "Gain, an alpha per KV head", "head L1 saved"),
            column("n", "n", "KV heads"),
        ],
        rows,
        file="sweep-alphas.csv",
        note="One prompt. Least by the summed isolated head L1 at the first decoding step, not "
        "by the answer. An alpha per layer or KV head is chosen by looking at the outcome.",
        empty="Two alphas at one budget are needed to compare them.",
    )
