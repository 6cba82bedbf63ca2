"""The summary table: what each column means, and its cells."""

from typing import Any

from ckv_core.analysis.names import display_names
from ckv_core.analysis.outcomes import answer_outcome, kl_where_it_fails
from ckv_core.analysis.regimes import run_regimes
from ckv_core.analysis.rounding import floor_by_figure, floor_sentence, short
from ckv_core.analysis.sweep import mean_head_l1
from ckv_core.results.byte_budget import requested_bytes
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult
from ui.looks.palette import looks_of
from ui.tables.summary_columns import FIDELITY_COLUMNS, NOT_YET, Cell, Column, cell_of, four_digits

MIB = 2**20


def summary_value(result: RunResult, *, ended: bool = False) -> dict[str, Any] | None:
    """Value of the SummaryTable component; None until the variants are known.

    Args:
        result: of the run.
        ended: nothing will come any more: what no variant has is left out.
    """
    shown = [c for c in COLUMNS if not (ended or c.key in _OPTIONAL) or _has_cell(result, c)]
    if not result.variants or not shown:
        return None
    regimes = run_regimes(result)
    return {
        "head": regimes.head,
        "columns": [
            {
                "key": c.key,
                "label": c.label,
                "help": c.help,
                "unit": c.unit,
                "align": "right",
                "extra": _is_extra(result, c),
            }
            for c in shown
        ],
        "rows": [
            {
                "look": look.value,
                "label": variant.label,
                "spec": variant.spec,
                "regime": regime,
                "cells": {c.key: c.cell(result, variant) for c in shown},
            }
            for look, variant, regime in zip(
                looks_of(result.variants), result.variants, regimes.marks, strict=True
            )
        ],
        "notes": [*filter(None, [floor_sentence(result)]), *_warnings(result)],
    }


def kept_share(variant: VariantResult) -> float | None:
    """Bytes of this variant's cache as a share of the full cache's."""
    receipt = variant.receipt
    return receipt.cache_bytes / receipt.full_cache_bytes if receipt else None


def _kept(_: RunResult, variant: VariantResult) -> Cell:
    receipt = variant.receipt
    if receipt is None:
        return NOT_YET
    used, requested = receipt.retained_entries, receipt.requested_entries
    title = f"Requested {requested:,} entries, counted {used:,} in the kept sets."
    return cell_of(f"{requested:,} / {used:,}", title, "" if used == requested else "warn")


def _bytes(result: RunResult, variant: VariantResult) -> Cell:
    requested, receipt = requested_bytes(result, variant), variant.receipt
    if receipt is None or requested is None:
        return NOT_YET
    used = receipt.cache_bytes
    title = f"Requested {requested:,} bytes, measured {used:,} bytes in the tensors."
    if "store" in variant.params:
        title += f" What is kept is held as {variant.params['store']}."
    tone = "warn" if abs(used - requested) > 0.05 * requested else ""
    return cell_of(f"{requested / MIB:.2f} / {used / MIB:.2f}", title, tone)


def _share(_: RunResult, variant: VariantResult) -> Cell:
    share, receipt = kept_share(variant), variant.receipt
    if share is None or receipt is None:
        return NOT_YET
    return cell_of(
        f"{share:.1%}", f"The full cache takes {receipt.full_cache_bytes / MIB:.2f} MiB."
    )


def _agreement(_: RunResult, variant: VariantResult) -> Cell:
    if variant.agreement is None:
        return NOT_YET
    return cell_of(f"{variant.agreement:.0%}", tone="good" if variant.agreement == 1 else "")


def _first_difference(_: RunResult, variant: VariantResult) -> Cell:
    if variant.first_difference is not None:
        return cell_of(f"token {variant.first_difference + 1}")
    return NOT_YET if variant.agreement is None else cell_of("none", tone="good")


def _kl(result: RunResult, variant: VariantResult) -> Cell:
    found = variant.perturbation
    if found is None:
        return NOT_YET
    return _above_floor(result, "kl", found.kl, f"{found.kl:z#.3g}", f"{found.kl:z.6g} nats")


def _final_l1(result: RunResult, variant: VariantResult) -> Cell:
    found = variant.perturbation
    if found is None:
        return NOT_YET
    final = found.final_hidden_l1
    return _above_floor(result, "final", final, four_digits(final), f"{final:.6g}")


def _above_floor(result: RunResult, figure: str, value: float, text: str, title: str) -> Cell:
    """A cell that says so where rounding alone moves as far."""
    floor = floor_by_figure(result.floor).get(figure)
    if floor is None or value > floor:
        return cell_of(text, title)
    return cell_of(f"{text} ≤ floor", f"{title}; this run's rounding floor is {short(floor)}.")


def _head_l1(_: RunResult, variant: VariantResult) -> Cell:
    mean = mean_head_l1(variant)
    return NOT_YET if mean is None else cell_of(four_digits(mean), f"{mean:.6g}")


def _improved(_: RunResult, variant: VariantResult) -> Cell:
    found = variant.perturbation
    share = None if found is None else found.improved_head_share
    if found is None or share is None:
        return NOT_YET
    count = found.compared_heads
    text = f"{share:.0%} of {count:,}"
    title = f"{round(share * count):,} of {count:,} query heads moved less than in the base."
    return cell_of(text, title)


_ANSWERS = {
    "found": cell_of("yes", tone="good"),
    "missing": cell_of("no", tone="warn"),
    "cut": cell_of("cut", "Cut at the limit of new tokens before an answer.", "warn"),
}


def _answer(_: RunResult, variant: VariantResult) -> Cell:
    outcome = answer_outcome(variant)
    return NOT_YET if outcome is None else _ANSWERS[outcome]


def _kl_at_difference(_: RunResult, variant: VariantResult) -> Cell:
    found = kl_where_it_fails(variant)
    return NOT_YET if found is None else cell_of(f"{found:z#.3g}", f"{found:z.6g} nats")


# What came out and what it cost comes first, the mechanism after.
COLUMNS: tuple[Column, ...] = (
    Column(
        key="answer",
        label="Answer found",
        unit="",
        help="Whether the reference answer occurs in the generated text. Cut: the limit of new "
        "tokens ended it before, which is no wrong answer.",
        cell=_answer,
    ),
    Column(
        key="agreement",
        label="Agreement",
        unit="with full",
        help="Share of the full cache's generated tokens that this variant reproduces before its "
        "first difference.",
        cell=_agreement,
    ),
    Column(
        key="first_difference",
        label="First difference",
        unit="from full",
        help="The first generated token that differs from the full cache's.",
        cell=_first_difference,
        is_extra=True,
    ),
    Column(
        key="kl_at_difference",
        label="KL where it differs",
        unit="nats",
        help="KL divergence of the next-token distribution from the full cache's at the first "
        "token that differs; known where teacher-forced fidelity was measured.",
        cell=_kl_at_difference,
    ),
    Column(
        key="share",
        label="Of full",
        unit="bytes",
        help="Measured cache bytes as a share of the full cache's.",
        cell=_share,
    ),
    *FIDELITY_COLUMNS,
    Column(
        key="kept",
        label="Kept entries",
        unit="requested / used",
        help="Key-value entries of the prompt over all evictable layers and KV heads: the budget, "
        "and what the kept sets really hold.",
        cell=_kept,
    ),
    Column(
        key="bytes",
        label="Cache",
        unit="MiB, requested / used",
        help="Memory of the prompt's keys and values: for the requested entries, and measured in "
        "the tensors that this variant decodes from.",
        cell=_bytes,
    ),
    Column(
        key="kl",
        label="KL, first step",
        unit="nats",
        help="KL divergence of the next-token distribution from the full cache's at the first "
        "decoding step; 0 is equal.",
        cell=_kl,
    ),
    Column(
        key="final_l1",
        label="Final hidden",
        unit="L1",
        help="Distance of the hidden state after the last block from the full run's, errors of "
        "earlier layers carried along; first decoding step.",
        cell=_final_l1,
    ),
    Column(
        key="head_l1",
        label="Mean head",
        unit="L1",
        help="How far eviction alone moves one head's attention output, averaged over the query "
        "heads; the head gets the full run's input.",
        cell=_head_l1,
    ),
    Column(
        key="improved",
        label="Heads closer to the full cache",
        unit="than without CriticalKV",
        help="CriticalKV only: share of query heads whose output moves less than with the same "
        "method and settings without CriticalKV, at the first decoding step. It does not say who "
        "answers.",
        cell=_improved,
    ),
)


# Left out where no variant has the figure: not asked for, or no reference answer.
_OPTIONAL = {"answer", "kl_at_difference", *(column.key for column in FIDELITY_COLUMNS)}


def _is_extra(result: RunResult, column: Column) -> bool:
    """Whether the column waits until it is asked for; a warning is never hidden."""
    warned = any(column.cell(result, variant)["tone"] == "warn" for variant in result.variants)
    return column.is_extra and not warned


def _has_cell(result: RunResult, column: Column) -> bool:
    return any(column.cell(result, variant) != NOT_YET for variant in result.variants)


def _warnings(result: RunResult) -> list[str]:
    """Each warning once, after the variants that have it."""
    named: dict[str, list[str]] = {}
    names = display_names(result.variants)
    for name, variant in zip(names, result.variants, strict=True):
        for warning in variant.receipt.warnings if variant.receipt else ():
            named.setdefault(warning, []).append(name)
    return [f"{', '.join(of)}: {warning}" for warning, of in named.items()]
