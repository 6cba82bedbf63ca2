"""The table of a run: its columns, what stands in each cell, and its metrics as CSV."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ckv_core.experiment.metric_rows import metric_rows
from ckv_core.experiment.names import display_names
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.rounding import floor_by_metric, floor_sentence, short
from ckv_core.records.byte_budget import requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import Metric, metrics_in
from ckv_core.records.outcomes import cut_note, has_exact_match, outcome_word
from ckv_core.records.records import VariantResult
from ui.looks.palette import looks_of
from ui.tables.csv_text import csv_text
from ui.tables.data_table import Column, column, data_table, table_row, text_column

MIB = 2**20
_METRICS = metrics_in("table")
Cell = dict[str, str]


# What stands above a column, where it is not the metric's label, unit and definition.
_LABELS = {
    "answer": "Outcome",
    "forced_top1": "Teacher-forced agreement",
    "forced_kl": "Teacher-forced KL",
    "kl": "KL, first step",
    "final": "Final hidden",
    "head": "Mean head",
    "improved_heads": "Heads closer to the full cache",
}
_UNITS = {
    "answer": "",
    "agreement": "with full",
    "first_difference": "from full",
    "exact_match": "with answer",
    "token_f1": "with answer",
    "edit_similarity": "with answer",
    "forced_top1": "of positions",
    "forced_kl": "mean, nats",
    "share": "bytes",
    "retained_entries": "requested / used",
    "cache_bytes": "MiB, requested / used",
    "improved_heads": "than without CriticalKV",
}
_HELP = {
    "forced_top1": "Teacher-forced on the full cache's own text: share of its positions where this "
    "variant's first choice is the same token; n in the cell's title.",
    "forced_kl": "Teacher-forced on the full cache's own text: KL divergence from the full cache's "
    "next-token distribution, mean over its positions; n in the cell's title.",
}
# A run that goes on will know them; of others there may be nothing to know.
_EXPECTED = {"agreement", "first_difference", "share", "retained_entries", "cache_bytes"}
_EXPECTED |= {"kl", "final", "head", "improved_heads"}
# All others are shown on request, so that the table fits a laptop.
_ALWAYS = _EXPECTED - {"first_difference"} | {"answer", "kl_at_difference"}


def summary_value(result: RunResult, *, ended: bool = False) -> dict[str, Any] | None:
    """Value of the DataTable; None until the variants are known.

    `ended`: nothing will come any more: what no variant has is left out.
    """
    cells = {
        key: [cell(result, variant, metric) for variant in result.variants]
        for key, metric in _METRICS.items()
        if key != "exact_match" or has_exact_match(result.variants)
        for cell in [_CELLS.get(key, _plain)]
    }
    shown = {
        key: each
        for key, each in cells.items()
        if (key in _EXPECTED and not ended) or any(cell != NOT_YET for cell in each)
    }
    if not result.variants or not shown:
        return None
    regimes = run_regimes(result)
    rows = zip(looks_of(result.variants), result.variants, regimes.marks, strict=True)
    notes = (cut_note(result.variants), floor_sentence(result), *_warnings(result))
    return data_table(
        "Receipt and metrics of every variant",
        [
            text_column("variant", "Variant"),
            column("spec", "SPEC", hidden=True),
            *(_column(_METRICS[key], each) for key, each in shown.items()),
        ],
        [
            table_row(
                {
                    "variant": {"text": variant.label, "spec": variant.spec},
                    "spec": {"text": variant.spec},
                    **{key: each[at] for key, each in shown.items()},
                },
                look,
                regime,
            )
            for at, (look, variant, regime) in enumerate(rows)
        ],
        file="summary.csv",
        head=regimes.head,
        note="\n".join(filter(None, notes)),
    )


def summary_csv(result: RunResult) -> str:
    """One line per variant."""
    return csv_text(*metric_rows(result))


def four_digits(value: float) -> str:
    """Four digits or more: `g` alone would turn 12,345 into 1.234e+04."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}"


def _column(metric: Metric, cells: list[Cell]) -> Column:
    """Its head, and whether it is shown on demand; a warning is never hidden."""
    return column(
        metric.key,
        _LABELS.get(metric.key, metric.label),
        _UNITS.get(metric.key, metric.unit_name),
        help=_HELP.get(metric.key, metric.definition),
        extra=metric.key not in _ALWAYS and all(cell["tone"] != "warn" for cell in cells),
    )


def _cell(text: str, title: str = "", tone: str = "") -> Cell:
    return {"text": text, "title": title, "tone": tone}


NOT_YET = _cell("–", "Not known yet, or not defined for this variant.")  # noqa: RUF001 - dash


def _plain(result: RunResult, variant: VariantResult, metric: Metric) -> Cell:
    """Rounded by its unit; whole, with n, in the title. It says so where rounding moves as far."""
    value = metric.read(variant)
    if value is None:
        return NOT_YET
    is_nats = metric.unit == "nats"
    text = f"{value:z#.3g}" if is_nats else four_digits(value)
    text = f"{value:z.0%}" if metric.is_share else text
    title = f"{value:z.6g}{' nats' * is_nats}"
    if metric.group == "forced":
        positions = int(np.isfinite(variant.analysis[metric.key]).sum())
        title += f"; n = {positions:,} positions of the full cache's text."
    elif metric.has_own_full:
        title += "; n = 1 answer."
    floor = floor_by_metric(result.floor).get(metric.key)
    if floor is not None and value <= floor:
        return _cell(f"{text} ≤ floor", f"{title}; this run's rounding floor is {short(floor)}.")
    return _cell(text, title, "good" if metric.key == "agreement" and value == 1 else "")


def _answer(_: RunResult, variant: VariantResult, __: Metric) -> Cell:
    if (word := outcome_word(variant)) == "":
        return NOT_YET
    titles = {
        "cut": "Cut at the limit of new tokens before an answer: neither right nor wrong.",
        "failed": variant.failure,
    }
    tone = "good" if variant.is_right else "warn"
    return _cell(word, titles.get(variant.outcome or "", ""), tone)


def _first_difference(_: RunResult, variant: VariantResult, __: Metric) -> Cell:
    if variant.first_difference is not None:
        return _cell(f"token {variant.first_difference + 1}")
    return NOT_YET if variant.agreement is None else _cell("none", tone="good")


def _kept(_: RunResult, variant: VariantResult, __: Metric) -> Cell:
    receipt = variant.receipt
    if receipt is None:
        return NOT_YET
    used, requested = receipt.retained_entries, receipt.requested_entries
    title = f"Requested {requested:,} entries, counted {used:,} in the kept sets."
    return _cell(f"{requested:,} / {used:,}", title, "" if used == requested else "warn")


def _bytes(result: RunResult, variant: VariantResult, _: Metric) -> Cell:
    requested, receipt = requested_bytes(result, variant), variant.receipt
    if receipt is None or requested is None:
        return NOT_YET
    used = receipt.cache_bytes
    title = f"Requested {requested:,} bytes, measured {used:,} bytes in the tensors."
    if "store" in variant.params:
        title += f" What is kept is held as {variant.params['store']}."
    tone = "warn" if abs(used - requested) > 0.05 * requested else ""
    return _cell(f"{requested / MIB:.2f} / {used / MIB:.2f}", title, tone)


def _share(_: RunResult, variant: VariantResult, metric: Metric) -> Cell:
    share, receipt = metric.read(variant), variant.receipt
    if share is None or receipt is None:
        return NOT_YET
    full = f"The full cache takes {receipt.full_cache_bytes / MIB:.2f} MiB."
    return _cell(f"{share:.1%}", full)


def _held(_: RunResult, variant: VariantResult, __: Metric) -> Cell:
    if variant.held is None:
        return NOT_YET
    entries, used = variant.held.entries, variant.held.cache_bytes
    title = (
        f"From {entries[0]:,} at the first generated token to {entries[-1]:,} at the last of "
        f"{len(entries):,}; then {used[-1]:,} bytes."
    )
    return _cell(f"{entries[-1]:,}", title)


def _improved(_: RunResult, variant: VariantResult, metric: Metric) -> Cell:
    moved, share = variant.perturbation, metric.read(variant)
    if moved is None or share is None:
        return NOT_YET
    count = moved.compared_heads
    title = f"{round(share * count):,} of {count:,} query heads moved less than in the base."
    return _cell(f"{share:.0%} of {count:,}", title)


# Of those whose cell says more than their number.
_CELLS: dict[str, Callable[[RunResult, VariantResult, Metric], Cell]] = {
    "answer": _answer,
    "first_difference": _first_difference,
    "retained_entries": _kept,
    "cache_bytes": _bytes,
    "share": _share,
    "held": _held,
    "improved_heads": _improved,
}


def _warnings(result: RunResult) -> list[str]:
    """Each warning once, after the variants that have it."""
    named: dict[str, list[str]] = {}
    names = display_names(result.variants)
    for name, variant in zip(names, result.variants, strict=True):
        for warning in variant.receipt.warnings if variant.receipt else ():
            named.setdefault(warning, []).append(name)
    return [f"{', '.join(of)}: {warning}" for warning, of in named.items()]
