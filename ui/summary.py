"""The summary table: what each column means, and its cells."""

from typing import Any

import numpy as np

from ckv_core.events import RunResult
from ckv_core.records import ModelInfo, VariantResult
from ckv_core.sweep_reading import mean_head_l1
from ui.charts.layout import display_names
from ui.summary_columns import FIDELITY_COLUMNS, NOT_YET, Cell, Column, cell_of, four_digits

MIB = 2**20
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def summary_value(result: RunResult) -> dict[str, Any] | None:
    """Value of the SummaryTable component; None until the variants are known."""
    if not result.variants:
        return None
    shown = [c for c in COLUMNS if c.key not in _OPTIONAL or _has_cell(result, c)]
    return {
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
                "index": index,
                "label": variant.label,
                "spec": variant.spec,
                "cells": {c.key: c.cell(result, variant) for c in shown},
            }
            for index, variant in enumerate(result.variants)
        ],
        "notes": _warnings(result),
    }


def kept_share(variant: VariantResult) -> float | None:
    """Bytes of this variant's cache as a share of the full cache's."""
    receipt = variant.receipt
    return receipt.cache_bytes / receipt.full_cache_bytes if receipt else None


def requested_bytes(result: RunResult, variant: VariantResult) -> int | None:
    """Bytes that the requested entries take; layers left whole are counted in full."""
    if variant.receipt is None or result.model is None or result.prompt is None:
        return None
    model, receipt = result.model, variant.receipt
    evictable = len(model.evictable_layers) * model.kv_heads * result.prompt.compressed_tokens
    dropped = evictable - receipt.requested_entries
    return receipt.full_cache_bytes - dropped * entry_bytes(model)


def entry_bytes(model: ModelInfo) -> int:
    """Bytes of one key and its value at one (layer, KV head, position)."""
    return 2 * model.head_dim * _DTYPE_BYTES.get(model.dtype, 4)


def _kept(_: RunResult, variant: VariantResult) -> Cell:
    receipt = variant.receipt
    if receipt is None:
        return NOT_YET
    got, asked = receipt.retained_entries, receipt.requested_entries
    title = f"Asked for {asked:,} entries, counted {got:,} in the kept sets."
    return cell_of(f"{asked:,} / {got:,}", title, "" if got == asked else "warn")


def _bytes(result: RunResult, variant: VariantResult) -> Cell:
    asked, receipt = requested_bytes(result, variant), variant.receipt
    if receipt is None or asked is None:
        return NOT_YET
    got = receipt.cache_bytes
    title = f"Asked for {asked:,} bytes, measured {got:,} bytes in the tensors."
    tone = "warn" if abs(got - asked) > 0.05 * asked else ""
    return cell_of(f"{asked / MIB:.2f} / {got / MIB:.2f}", title, tone)


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


def _kl(_: RunResult, variant: VariantResult) -> Cell:
    found = variant.perturbation
    return NOT_YET if found is None else cell_of(f"{found.kl:z#.3g}", f"{found.kl:z.6g} nats")


def _final_l1(_: RunResult, variant: VariantResult) -> Cell:
    found = variant.perturbation
    if found is None:
        return NOT_YET
    return cell_of(four_digits(found.final_hidden_l1), f"{found.final_hidden_l1:.6g}")


def _head_l1(_: RunResult, variant: VariantResult) -> Cell:
    mean = mean_head_l1(variant)
    return NOT_YET if mean is None else cell_of(four_digits(mean), f"{mean:.6g}")


def _improved(_: RunResult, variant: VariantResult) -> Cell:
    found = variant.perturbation
    share = None if found is None else found.improved_head_share
    if found is None or share is None:
        return NOT_YET
    count = int(np.isfinite(found.head_l1).sum())
    text = f"{share:.0%} of {count:,}"
    title = f"{round(share * count):,} of {count:,} query heads moved less than in the base."
    return cell_of(text, title, "good" if share > 0.5 else "")


def _speed(_: RunResult, variant: VariantResult) -> Cell:
    if variant.tokens_per_second is None:
        return NOT_YET
    return cell_of(f"{variant.tokens_per_second:.1f}")


def _answer(_: RunResult, variant: VariantResult) -> Cell:
    if variant.answer_found is None:
        return NOT_YET
    return cell_of("yes", tone="good") if variant.answer_found else cell_of("no", tone="warn")


COLUMNS: tuple[Column, ...] = (
    Column(
        key="kept",
        label="Kept entries",
        unit="asked / got",
        help="Key-value entries of the prompt over all evictable layers and KV heads: the budget, "
        "and what the kept sets really hold.",
        cell=_kept,
    ),
    Column(
        key="bytes",
        label="Cache",
        unit="MiB, asked / got",
        help="Memory of the prompt's keys and values: for the entries asked for, and measured in "
        "the tensors that this variant decodes from.",
        cell=_bytes,
    ),
    Column(
        key="share",
        label="Of full",
        unit="bytes",
        help="Measured cache bytes as a share of the full cache's.",
        cell=_share,
        is_extra=True,
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
        key="kl",
        label="KL",
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
        label="Better heads",
        unit="vs own base",
        help="CriticalKV only: share of query heads whose output moves less than with the same "
        "method and settings without CriticalKV.",
        cell=_improved,
    ),
    Column(
        key="speed",
        label="Speed",
        unit="tokens/s",
        help="Generated tokens per second of this variant while all variants decode together.",
        cell=_speed,
    ),
    *FIDELITY_COLUMNS,
    Column(
        key="answer",
        label="Answer found",
        unit="",
        help="Whether the reference answer occurs in the generated text.",
        cell=_answer,
    ),
)


# Left out where no variant has the figure: not asked for, or no reference answer.
_OPTIONAL = {"answer", *(column.key for column in FIDELITY_COLUMNS)}


def _is_extra(result: RunResult, column: Column) -> bool:
    """Whether the column waits until it is asked for: of no weight, or empty in the end.

    A warning is never hidden.
    """
    if any(column.cell(result, variant)["tone"] == "warn" for variant in result.variants):
        return False
    return column.is_extra or (result.finished and not _has_cell(result, column))


def _has_cell(result: RunResult, column: Column) -> bool:
    return any(column.cell(result, variant) != NOT_YET for variant in result.variants)


def _warnings(result: RunResult) -> list[str]:
    """Each warning once, after the variants that have it."""
    named: dict[str, list[str]] = {}
    names = display_names(result.variants, escaped=False)
    for name, variant in zip(names, result.variants, strict=True):
        for warning in variant.receipt.warnings if variant.receipt else ():
            named.setdefault(warning, []).append(name)
    return [f"{', '.join(of)}: {warning}" for warning, of in named.items()]
