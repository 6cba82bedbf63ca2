"""A column of the summary table, and the columns of fidelity and of the reference answer."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ckv_core.analysis.known import mean_of_known
from ckv_core.analysis.outcomes import has_exact_match
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult

Cell = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One figure of a variant.

    Attributes:
        key: name in the table's value.
        label, unit: head of the column.
        help: what the figure is, in one or two sentences.
        cell: result and variant -> what a reader sees.
        is_extra: shown on demand, so that the table fits a laptop.
    """

    key: str
    label: str
    unit: str
    help: str
    cell: Callable[[RunResult, VariantResult], Cell]
    is_extra: bool = False


def cell_of(text: str, title: str = "", tone: str = "") -> Cell:
    return {"text": text, "title": title, "tone": tone}


def four_digits(value: float) -> str:
    """Four digits or more: `g` alone would turn 12,345 into 1.234e+04."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}"


NOT_YET = cell_of("–", "Not known yet, or not defined for this variant.")  # noqa: RUF001 - dash


def forced_mean(variant: VariantResult, name: str) -> float | None:
    """Mean over the positions of the full cache's text; None for that cache itself."""
    return None if variant.method == "full" else mean_of_known(variant.analysis.get(name))


def _forced_mean(name: str, *, as_share: bool) -> Callable[[RunResult, VariantResult], Cell]:
    def cell(_: RunResult, variant: VariantResult) -> Cell:
        mean = forced_mean(variant, name)
        if mean is None:
            return NOT_YET
        positions = int(np.isfinite(variant.analysis[name]).sum())
        title = f"{mean:z.6g}; n = {positions:,} positions of the full cache's text."
        return cell_of(f"{mean:z.0%}" if as_share else f"{mean:z.3g}", title)

    return cell


def _answer_score(key: str) -> Callable[[RunResult, VariantResult], Cell]:
    def cell(result: RunResult, variant: VariantResult) -> Cell:
        if key == "exact_match" and not has_exact_match(result.variants):
            return NOT_YET
        score = variant.answer_scores.get(key)
        return NOT_YET if score is None else cell_of(f"{score:.0%}", f"{score:.6g}; n = 1 answer.")

    return cell


def _held(_: RunResult, variant: VariantResult) -> Cell:
    if variant.held is None:
        return NOT_YET
    entries, used = variant.held.entries, variant.held.cache_bytes
    title = (
        f"From {entries[0]:,} at the first generated token to {entries[-1]:,} at the last of "
        f"{len(entries):,}; then {used[-1]:,} bytes."
    )
    return cell_of(f"{entries[-1]:,}", title)


FIDELITY_COLUMNS: tuple[Column, ...] = (
    Column(
        key="held",
        label="Held at the end",
        unit="entries",
        help="Of methods that evict while they generate: entries of prompt, question and generated "
        "text in the evictable layers when the last token was chosen.",
        cell=_held,
        is_extra=True,
    ),
    Column(
        key="forced_top1",
        label="Forced agreement",
        unit="of positions",
        help="Teacher-forced on the full cache's own text: share of its positions where this "
        "variant's first choice is the same token; n in the cell's title.",
        cell=_forced_mean("forced_top1", as_share=True),
        is_extra=True,
    ),
    Column(
        key="forced_kl",
        label="Forced KL",
        unit="mean, nats",
        help="Teacher-forced on the full cache's own text: KL divergence from the full cache's "
        "next-token distribution, mean over its positions; n in the cell's title.",
        cell=_forced_mean("forced_kl", as_share=False),
        is_extra=True,
    ),
    Column(
        key="exact_match",
        label="Exact match",
        unit="with answer",
        help="Whether the generated text is the reference answer, but for case and punctuation; "
        "shown where the full cache's own text is.",
        cell=_answer_score("exact_match"),
        is_extra=True,
    ),
    Column(
        key="token_f1",
        label="Token F1",
        unit="with answer",
        help="Words that the generated text and the reference answer share: harmonic mean of "
        "precision and recall.",
        cell=_answer_score("token_f1"),
        is_extra=True,
    ),
    Column(
        key="edit_similarity",
        label="Edit similarity",
        unit="with answer",
        help="1 minus the edit distance to the reference answer over the longer one's length.",
        cell=_answer_score("edit_similarity"),
        is_extra=True,
    ),
)
