"""Variants compared prompt by prompt: with their base, and with the full cache. No torch.

Intervals of two means beside one another are no comparison: most of their width is how prompts
differ, which is the same for both. Differences of the same prompts are free of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.rounding import floor_by_figure
from ckv_core.experiment.stats import Difference, paired
from ckv_core.results.figures import FIGURES, figures_in

# What a pair is compared in: what says how close to the full cache, or to the answer, it is.
COMPARED = {key: f.label for key, f in figures_in("sweep").items() if f.better}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One variant against another on the same prompts.

    Attributes:
        other: the base (the same settings and budget without CriticalKV) or the full cache.
        figures: by key of COMPARED; only those that both know on some prompt.
    """

    variant: JoinedVariant
    other: JoinedVariant
    figures: Mapping[str, Difference]


def compare_pairs(variants: Sequence[JoinedVariant]) -> list[Pair]:
    """Each variant against its base, then each against the full cache."""
    return [pair for pair in [*_with_bases(variants), *_with_full(variants)] if pair.figures]


def _with_bases(variants: Sequence[JoinedVariant]) -> Iterator[Pair]:
    by_identity = {each.identity: each for each in variants}
    for variant in variants:
        base = variant.identity.base
        if base is not None and base in by_identity:
            yield _pair(variant, by_identity[base])


def _with_full(variants: Sequence[JoinedVariant]) -> Iterator[Pair]:
    """Only in figures that the full cache has of its own; in others it is at 0 or 1."""
    full = next((each for each in variants if not each.place), None)
    own = [key for key in COMPARED if FIGURES[key].has_own_full]
    for variant in variants if full else ():
        if full is not None and variant.place:
            yield _pair(variant, full, own)


def _pair(variant: JoinedVariant, other: JoinedVariant, keys: Sequence[str] = ()) -> Pair:
    differences = {key: _difference(variant, other, key) for key in keys or COMPARED}
    figures = {key: each for key, each in differences.items() if each is not None}
    return Pair(variant=variant, other=other, figures=figures)


def _difference(variant: JoinedVariant, other: JoinedVariant, key: str) -> Difference | None:
    return paired(
        _by_prompt(variant, key),
        _by_prompt(other, key),
        is_share=FIGURES[key].is_share,
        is_yes_no=FIGURES[key].is_binary,
        floors=(_floors(variant, key), _floors(other, key)),
    )


def _floors(variant: JoinedVariant, key: str) -> dict[int, float]:
    """By prompt; nothing of figures that have no rounding floor."""
    known = zip(variant.prompts, map(floor_by_figure, variant.floors), strict=True)
    return {at: floor[key] for at, floor in known if key in floor}


def _by_prompt(variant: JoinedVariant, key: str) -> dict[int, float]:
    read = map(FIGURES[key].read, variant.variants)
    known = zip(variant.prompts, read, strict=True)
    return {at: value for at, value in known if value is not None and not isnan(value)}
