"""What a study says: scores with intervals, paired differences, L1 against answers. No torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from ckv_core.experiment.stats import (
    Difference,
    Interval,
    difference_interval,
    holm,
    paired,
    rank_correlation,
    score_interval,
)
from ckv_core.request.variants import VariantSpec
from ckv_core.studies.records import FULL, Point, Sample, SampleResult, Study

FULL_POINT = Point(FULL, None)
Scores = Mapping[str, float]  # of a point, by sample or by source


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point of the table.

    Attributes:
        n: sources with a score; samples of one source count once, with their mean.
        failed: samples without a generation.
        cut: samples whose text the limit of new tokens ended before an answer; in no mean.
        score: mean over the sources; None where there is none.
        low, high: 95 % interval.
        cache_share: mean bytes of the cache over the full cache's; None where not known.
        head_l1: mean over samples; None for the full cache.
    """

    point: Point
    n: int
    failed: int
    cut: int
    score: float | None
    low: float | None
    high: float | None
    cache_share: float | None
    head_l1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """One point against the full cache, or its base without CriticalKV, on the same sources.

    Attributes:
        found: its score minus the other's, by source; p where all scores are 0 or 1.
        holm_p: the same p, adjusted over all pairs that have one.
    """

    point: Point
    other: Point
    found: Difference
    holm_p: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What a study says.

    Attributes:
        rows: in the order of the points; the full cache first.
        pairs: each point against the full cache, then each with CriticalKV against its base.
        l1_answers: rank correlation, mean over the samples, of lower head L1 with a better score
            among variants of one budget; None where nothing varies.
        scores: of each point by source.
    """

    rows: tuple[Row, ...]
    pairs: tuple[PairedRow, ...]
    l1_answers: Interval | None
    scores: Mapping[Point, Scores]

    @property
    def bases(self) -> dict[str, str]:
        """Of each variant with CriticalKV the one without, where the study has it."""
        pairs = (pair for pair in self.pairs if pair.other != FULL_POINT)
        return {pair.point.variant: pair.other.variant for pair in pairs}


def read_results(
    study: Study, samples: Sequence[Sample], results: Collection[SampleResult]
) -> Reading:
    """Read results, all or those that are there so far; only of `samples`, all or some."""
    by_point = _by_point(study, samples, results)
    source_of = {sample.id: source(sample) for sample in samples}
    scores = {point: _by_source(found, source_of) for point, found in by_point.items()}
    return Reading(
        rows=tuple(_row(point, found, scores[point]) for point, found in by_point.items()),
        pairs=tuple(_with_holm(_pairs(scores))),
        l1_answers=_l1_answers([result for found in by_point.values() for result in found]),
        scores=scores,
    )


def full_row(study: Study, samples: Sequence[Sample], results: Collection[SampleResult]) -> Row:
    """The full cache alone; `read_results` has the arguments."""
    found = _by_point(study, samples, results)[FULL_POINT]
    return _row(FULL_POINT, found, _by_source(found, {s.id: source(s) for s in samples}))


def source(sample: Sample) -> str:
    """What it shares with the samples that are not independent of it."""
    return sample.source or f"\0{sample.id}"


def _base_of(point: Point) -> Point | None:
    """The same point without CriticalKV; None where it has none, its SPEC as `spec` writes it."""
    spec = VariantSpec.parse(point.variant)
    return Point(spec.base().spec, point.budget) if spec.critical else None


def differences(own: Scores, other: Scores) -> list[float]:
    """Own minus other, of the sources that both have."""
    return [own[at] - other[at] for at in own if at in other]


def _by_point(
    study: Study, samples: Sequence[Sample], results: Collection[SampleResult]
) -> dict[Point, list[SampleResult]]:
    counted = {sample.id for sample in samples}
    found: dict[Point, list[SampleResult]] = {point: [] for point in study.points()}
    for result in results:
        point = Point(result.variant, result.budget)
        if result.sample in counted and point in found:
            found[point].append(result)
    return found


def _by_source(results: Sequence[SampleResult], source_of: Mapping[str, str]) -> Scores:
    found: dict[str, list[float]] = {}
    for result in results:
        if result.score is not None:
            found.setdefault(source_of[result.sample], []).append(result.score)
    return {source: sum(scores) / len(scores) for source, scores in found.items()}


def _row(point: Point, results: Sequence[SampleResult], scores: Scores) -> Row:
    score = score_interval([*scores.values()]) if scores else None
    shares = [
        result.cache_bytes / result.full_cache_bytes
        for result in results
        if result.cache_bytes is not None and result.full_cache_bytes
    ]
    moved = [result.head_l1 for result in results if result.head_l1 is not None]
    return Row(
        point=point,
        n=len(scores),
        failed=sum(result.outcome == "failed" for result in results),
        cut=sum(result.outcome == "cut" for result in results),
        score=score.mean if score else None,
        low=score.low if score else None,
        high=score.high if score else None,
        cache_share=sum(shares) / len(shares) if shares else None,
        head_l1=sum(moved) / len(moved) if moved else None,
    )


def _pairs(scores: Mapping[Point, Scores]) -> Iterator[PairedRow]:
    by_settings = {_settings(point): point for point in scores}
    evicting = [point for point in scores if point != FULL_POINT]
    for point in evicting:
        yield from _pair(point, FULL_POINT, scores)
    for point in evicting:
        base = _base_of(point)
        other = by_settings.get(_settings(base)) if base is not None else None
        if other is not None:
            yield from _pair(point, other, scores)


def _settings(point: Point) -> tuple[object, ...]:
    return (*VariantSpec.parse(point.variant).settings(), point.budget)


def _pair(point: Point, other: Point, scores: Mapping[Point, Scores]) -> Iterator[PairedRow]:
    own, theirs = scores[point], scores[other]
    is_yes_no = {*own.values(), *theirs.values()} <= {0.0, 1.0}
    found = paired(own, theirs, is_share=True, is_yes_no=is_yes_no)
    if found is not None:
        yield PairedRow(point=point, other=other, found=found, holm_p=None)


def _with_holm(pairs: Iterator[PairedRow]) -> Iterator[PairedRow]:
    known = [*pairs]
    adjusted = iter(holm([pair.found.p for pair in known if pair.found.p is not None]))
    for pair in known:
        yield pair if pair.found.p is None else replace(pair, holm_p=next(adjusted))


def _l1_answers(results: Sequence[SampleResult]) -> Interval | None:
    """Among variants of one sample and budget, so that the budget itself has no part in it."""
    known = [r for r in results if r.head_l1 is not None and r.score is not None]
    known.sort(key=lambda r: (r.sample, r.budget or ""))
    by_sample: dict[str, list[float]] = {}
    for (sample, _), group in groupby(known, key=lambda r: (r.sample, r.budget)):
        points = [(-float(r.head_l1 or 0), float(r.score or 0)) for r in group]
        l1, scores = np.array(points).T
        if len(points) >= 3 and np.ptp(l1) > 0 and np.ptp(scores) > 0:
            by_sample.setdefault(sample, []).append(rank_correlation(l1, scores))
    means = [sum(each) / len(each) for each in by_sample.values()]
    return difference_interval(means) if means else None
