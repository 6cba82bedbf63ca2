"""Table of variants compared prompt by prompt: with their base, and with the full cache."""

from typing import Any

from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.intervals import Interval
from ckv_core.analysis.pairs import COMPARED, Difference, Pair
from ckv_core.analysis.sweep import FIGURES
from ui.tables.aggregate import SeveralRuns, settings_text

NOTE = (
    "The variant's value minus the other's on the same prompts: mean, and 95 % bootstrap interval; "
    "an interval that holds 0 shows no difference. Below the rounding floor: rounding alone moves "
    "the full cache as far. Yes or no: prompts that gained (+) and lost (-) it, and two-sided p of "
    "the exact McNemar test. Each p is of its pair alone; of many pairs some are small by chance."
)


def shown_interval(found: Interval, *, is_share: bool) -> str:
    """`1.2 (1.1 to 1.3)`, or the mean alone."""

    def text(value: float) -> str:
        return f"{value:z.1%}" if is_share else f"{value:z,.4g}"

    if found.low is None or found.high is None:
        return text(found.mean)
    return f"{text(found.mean)} ({text(found.low)} to {text(found.high)})"


def pairs_table(found: SeveralRuns) -> dict[str, Any]:
    """Value of the DataTable: one row per pair; the file has intervals, counts and p apart."""
    pairs, looks = found.pairs, found.looks
    keys = [key for key in COMPARED if any(key in pair.figures for pair in pairs)]
    columns: list[dict[str, Any]] = [
        {"key": "variant", "label": "Variant", "align": "left"},
        {"key": "other", "label": "Minus", "align": "left"},
    ]
    for key in keys:
        columns.append({"key": key, "label": COMPARED[key], "unit": "difference"})
        columns += [
            {"key": f"{key}_{part}", "label": f"{COMPARED[key]} {part}", "hidden": True}
            for part in ("low", "high", "lower", "higher", "level", "p", "n")
        ]
    return {
        "caption": "Compared prompt by prompt",
        "columns": columns,
        "rows": [
            {"look": looks[pair.variant.place].value, "cells": _cells(pair)} for pair in pairs
        ],
        "note": NOTE if pairs else "No variant was run with its base or the full cache.",
        "file": "pairs.csv",
    }


def _cells(pair: Pair) -> dict[str, Any]:
    cells: dict[str, Any] = {
        "variant": {"text": _name(pair.variant)},
        "other": {"text": _name(pair.other)},
    }
    for key, found in pair.figures.items():
        text = _shown(key, found)
        text += "" if found.mean.n == pair.variant.n else f", n = {found.mean.n}"
        cells[key] = {"text": text, "value": found.mean.mean}
        parts = {"low": found.mean.low, "high": found.mean.high, "p": found.p, "n": found.mean.n}
        parts |= {"lower": found.lower, "higher": found.higher, "level": found.level}
        cells |= {f"{key}_{part}": {"value": value} for part, value in parts.items()}
    return cells


def _shown(key: str, found: Difference) -> str:
    if found.p is not None:
        return f"+{found.higher} -{found.lower}, p = {found.p:.2g}"
    shown = shown_interval(found.mean, is_share=FIGURES[key].unit == "1")
    return shown + found.level_note


def _name(variant: JoinedVariant) -> str:
    """Its label with what tells it from others of its method."""
    settings = settings_text(variant.spec, variant.identity.settings.alpha, variant.budget)
    label = variant.variants[0].label
    return f"{label}, {settings}" if settings else label
