"""The data of the line and grid charts as CSV text, one line per value."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

import numpy as np

from ckv_core.results.events import RunResult
from ckv_core.results.records import ForcedStep, VariantResult
from ui.charts.cache import entry_counts
from ui.charts.heads import log2_ratio
from ui.charts.layers import layer_means

Cell = str | int | float | None
_FORCED = ("forced_kl", "forced_rank", "forced_top1")  # of each step of the full cache's text
# What some reader takes for the end of a line, drops, or cannot encode. `csvField` of
# assets/common.js has the same three rules.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A spreadsheet runs a cell that starts like this, full-width forms included; where its language
# has the comma in numbers, a semicolon starts a cell too.
_FORMULA = re.compile(r"(^|;)(?=[\s\u200b-\u200f\u2060\ufeff]*[-=+@\uff0d\uff1d\uff0b\uff20])")
_NUMBER = re.compile(r"-[0-9.,]+\s*%?")


def layers_csv(result: RunResult) -> str:
    """Data of `layer_figure` and `head_layer_figure`: one line per variant and layer."""
    return csv_text(
        ("variant", "spec", "layer", "layer_hidden_l1", "mean_head_l1"),
        (
            (index, variant.spec, layer, number(hidden), number(mean))
            for index, variant in enumerate(result.variants)
            if variant.perturbation is not None
            for layer, (hidden, mean) in enumerate(
                zip(
                    variant.perturbation.layer_hidden_l1,
                    layer_means(variant.perturbation.head_l1),
                    strict=True,
                )
            )
        ),
    )


def heads_csv(result: RunResult) -> str:
    """Data of `head_grid_figure` for all variants: one line per variant, layer and query head."""
    head = ("variant", "spec", "layer", "query_head", "head_l1", "base_head_l1", "log2_ratio")
    return csv_text(
        head,
        (row for index, variant in enumerate(result.variants) for row in _heads_of(index, variant)),
    )


def budgets_csv(result: RunResult) -> str:
    """Data of `budgets_figure`: one line per variant, layer and KV head."""
    return csv_text(
        ("variant", "spec", "layer", "kv_head", "kept_entries"),
        (
            (index, variant.spec, layer, head, int(count))
            for index, variant in enumerate(result.variants)
            if variant.retained is not None
            for (layer, head), count in np.ndenumerate(entry_counts(variant.retained))
        ),
    )


def forced_csv(result: RunResult) -> str:
    """Candidates at each step of the full cache's continuation, best first.

    What was measured of a whole step stands in each of its lines; empty where it was not.
    """
    candidate = ("cache", "rank", "token_id", "token", "probability")
    return csv_text(
        ("variant", "spec", "step", *_FORCED, *candidate),
        (
            (
                index,
                variant.spec,
                step,
                *measured,
                cache,
                rank,
                item.token_id,
                item.text,
                item.probability,
            )
            for index, variant in enumerate(result.variants)
            for step, (found, measured) in enumerate(_forced_steps(variant))
            for cache, candidates in (("full", found.reference), ("variant", found.variant))
            for rank, item in enumerate(candidates, 1)
        ),
    )


def follow_ups_csv(result: RunResult) -> str:
    """Answers to follow-up questions: one line per variant and question."""
    head = ("variant", "spec", "question", "text", "stopped", "agreement", "first_difference")
    return csv_text(
        head,
        (
            (
                index,
                variant.spec,
                item.question,
                item.text,
                item.stopped,
                item.agreement,
                item.first_difference,
            )
            for index, variant in enumerate(result.variants)
            for item in variant.follow_ups
        ),
    )


def _safe_text(text: str) -> str:
    """The text on one line, control characters escaped, an apostrophe before what may run."""
    line = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return line if _NUMBER.fullmatch(line) else _FORMULA.sub(r"\1'", line)


def _forced_steps(variant: VariantResult) -> Iterable[tuple[ForcedStep, list[float | None]]]:
    """Each step's candidates, and its figures in the order of `_FORCED`."""
    arrays = [variant.analysis.get(name) for name in _FORCED]
    for step, found in enumerate(variant.forced_steps):
        yield found, [None if array is None else short(array[step]) for array in arrays]


def _heads_of(index: int, variant: VariantResult) -> Iterable[tuple[Cell, ...]]:
    found = variant.perturbation
    if found is None:
        return
    base = found.base_head_l1
    ratios = None if base is None else log2_ratio(found.head_l1, base)
    for (layer, head), value in np.ndenumerate(found.head_l1):
        yield (
            index,
            variant.spec,
            layer,
            head,
            number(value),
            None if base is None else number(base[layer, head]),
            None if ratios is None else number(ratios[layer, head]),
        )


def number(value: SupportsFloat) -> float | None:
    """A plain number; None (an empty cell) for NaN, which marks layers not evicted."""
    plain = float(value)
    return None if math.isnan(plain) else plain


def short(value: np.float32) -> float | None:
    """A number in as few digits as tell it from its neighbours: 0.35 and not 0.3499999940."""
    return None if np.isnan(value) else float(str(value))


def csv_text(head: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> str:
    """CSV text, one line per row whatever the texts hold; no spreadsheet runs them as formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(head)
    writer.writerows([_safe_text(c) if isinstance(c, str) else c for c in row] for row in rows)
    return out.getvalue()
