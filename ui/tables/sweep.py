"""Tables of a sweep: all points, and the budgets at which methods are equally good."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ckv_core.analysis import names
from ckv_core.analysis.aggregate import BudgetCurve
from ckv_core.analysis.regimes import marked_name, run_regimes
from ckv_core.analysis.rounding import floor_sentence
from ckv_core.analysis.sweep import (
    AXES,
    AlphaOptimum,
    Curve,
    OracleSet,
    alpha_optima,
    budget_unit,
    curves,
    known_oracles,
    matched_figures,
    shown_figures,
)
from ckv_core.analysis.sweep_savings import nobody_answers, savings
from ckv_core.analysis.verdict import alpha_outcome
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import cut_note, outcome_word
from ckv_core.results.passages import spans_of
from ckv_core.results.quantities import Figure
from ckv_core.results.records import VariantResult
from ui.looks.palette import Look, looks_of
from ui.tables.data_table import column, data_table, figure, table_row, text_column

DIGITS = "{:z,.4g}"
SAVINGS_NOTE = (
    "Read off by interpolation, linear in the logarithm of the budget and never beyond the budgets "
    "tried. One prompt."
)
MOOT_NOTE = "No point gives the answer, so an equal figure saves no budget."
POINTS_NOTE = "One prompt; L1 and KL at the first decoding step, 0 for the full cache."
MISSING_ANSWER = "The reference answer does not occur in the compressed prompt."


def points_table(result: RunResult, answer: str) -> dict[str, Any]:
    """Value of the DataTable of all points; an answer that the prompt lacks is said."""
    missing = bool(answer.strip() and result.prompt and not spans_of(result.prompt, answer))
    notes = (
        POINTS_NOTE,
        cut_note(result.variants),
        floor_sentence(result),
        MISSING_ANSWER if missing else "",
    )
    metrics = shown_figures(result)
    oracles = known_oracles(result)
    columns = [
        text_column("method", "Method and alpha"),
        column("budget", "Budget", AXES[budget_unit(result)]),
        *(column(m.key, m.label, m.unit_name) for m in metrics),
        *(column(oracle.key, oracle.label, "mean head L1") for oracle in oracles),
        text_column("spec", "SPEC"),
    ]
    rows = []
    looked = zip(curve_looks(result), curve_marks(result), curves(result), strict=True)
    for look, regime, curve in looked:
        for budget, index in curve.points:
            variant = result.variants[index]
            cells = {
                "method": {"text": curve_name(curve)},
                "budget": figure(float(budget), "{:,.0f}"),
                "spec": {"text": variant.spec},
            }
            for metric in metrics:
                cells[metric.key] = _metric_cell(metric, variant)
            for oracle in oracles:
                cells[oracle.key] = figure(oracle.read(variant), DIGITS)
            rows.append(table_row(cells, look, regime))
    table = data_table(
        "All points of the sweep",
        columns,
        rows,
        file="sweep-points.csv",
        note=" ".join(filter(None, notes)),
        head=run_regimes(result).head,
        empty="The points appear here as they are measured.",
    )
    return _folded(table, (metric.key for metric in metrics)) if result.finished else table


def savings_table(result: RunResult, reference: object) -> dict[str, Any]:
    """Which budget each line needs to match another's quality, as a DataTable.

    `reference` is the index of the line whose points are matched; a client may send anything.
    """
    lines = curves(result)
    known = isinstance(reference, int) and 0 <= reference < len(lines)
    rows = _savings_rows(result, lines, lines[reference]) if known else []  # type: ignore[call-overload]
    table = data_table(
        "Budget needed for equal quality",
        [
            text_column("method", "Method and alpha"),
            text_column("matches", "Matches"),
            *(column(m.key, f"Needs, by {m.label}", "entries") for m in matched_figures(result)),
        ],
        rows,
        file="sweep-budgets.csv",
        note=" ".join([SAVINGS_NOTE, *([MOOT_NOTE] if nobody_answers(result) else [])]),
        head=run_regimes(result).head,
        empty="One more method or alpha is needed to compare budgets.",
    )
    return _folded(table, (metric.key for metric in matched_figures(result)))


def curve_name(curve: Curve | BudgetCurve) -> str:
    """The method with whatever its SPEC says beside the budget."""
    return names.curve_name(curve.label, curve.alpha, curve.spec)


def curve_marks(result: RunResult) -> list[str]:
    """The regime of each curve, in their order, where there are both."""
    marks = run_regimes(result).marks
    return [marks[curve.points[0][1]] for curve in curves(result)]


def ranked_curves(result: RunResult) -> list[str]:
    """Their names in a chart, with the same."""
    pairs = zip(curves(result), curve_marks(result), strict=True)
    return [marked_name(curve_name(curve), mark) for curve, mark in pairs]


def curve_looks(result: RunResult) -> list[Look]:
    """One look per curve, in their order."""
    return looks_of(result.variants[curve.points[0][1]] for curve in curves(result))


def optimum_name(optimum: AlphaOptimum) -> str:
    """Method and budget over whose alphas the best was sought."""
    method = names.curve_name(VariantSpec.parse(optimum.spec).label, None, optimum.spec)
    return f"{method}, budget {optimum.budget:,}"


def oracle_name(oracles: OracleSet) -> str:
    """Whose budgets of the KV heads the oracles have."""
    first, *others = oracles.curves
    return curve_name(first) + (f" and {len(others)} more" if others else "")


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


def _savings_rows(result: RunResult, lines: list[Curve], target: Curve) -> list[dict[str, Any]]:
    """One row per other curve and point of the target, a cell per figure."""
    looks = dict(zip(lines, curve_looks(result), strict=True))
    marks = dict(zip(lines, curve_marks(result), strict=True))
    rows: dict[tuple[Curve, int], dict[str, Any]] = {}
    metrics = matched_figures(result)
    for metric in metrics:
        for saving in savings(result, target, metric):
            budget = saving.target_budget
            row = rows.setdefault(
                (saving.curve, budget),
                table_row(
                    {
                        "method": {"text": curve_name(saving.curve)},
                        "matches": {"text": f"{curve_name(target)} at {budget:,}", "value": budget},
                        **{metric.key: {"text": ""} for metric in metrics},
                    },
                    looks[saving.curve],
                    marks[saving.curve],
                ),
            )
            row["cells"][metric.key] = {"text": saving.full_text, "value": saving.match.budget}
    return list(rows.values())


def _metric_cell(metric: Figure, variant: VariantResult) -> dict[str, Any]:
    """A figure of a point; of an answer in a word."""
    if not metric.is_binary:
        return figure(metric.read(variant), DIGITS)
    if metric.key == "answer":
        return figure(metric.read(variant), outcome_word(variant)) | {"text": outcome_word(variant)}
    value = metric.read(variant)
    return figure(value, "yes" if value else "no")


def _folded(table: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Without those columns that say the same in every row; the note says it once."""
    rows = table["rows"]
    if len(rows) < 2:
        return table
    same = {
        key: rows[0]["cells"][key]["text"]
        for key in keys
        if len({row["cells"][key]["text"] for row in rows}) == 1
    }
    labels = {column["key"]: column["label"] for column in table["columns"]}
    told = [f"{labels[key]}: {text or 'not known'} in every row." for key, text in same.items()]
    kept = [column for column in table["columns"] if column["key"] not in same]
    return {**table, "columns": kept, "note": " ".join([table["note"], *told])}
