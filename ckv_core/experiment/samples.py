"""The results of a run of many samples as the one long table; L1 against answers. No torch."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from math import fsum

import numpy as np

from ckv_core.experiment.names import display_names
from ckv_core.experiment.points import Points, Row, Values
from ckv_core.experiment.stats import Interval, difference_interval, rank_correlation
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.methods.parameters import Budget
from ckv_core.records.identity import identify
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import FULL, Point, RunRequest
from ckv_core.records.variants import VariantSpec

FULL_POINT = Point(FULL, None)
# Metric of the table -> what a result has of it.
_MEASURED = {
    "score": "score",
    "agreement": "agreement",
    "head": "head_l1",
    "final": "final_l1",
    "kl": "kl",
}


def read_results(
    study: RunRequest, samples: Sequence[Sample], results: Collection[SampleResult]
) -> Points:
    """Read results, all or those that are there so far; only of `samples`, all or some."""
    sources = {sample.id: source(sample) for sample in samples}
    found: dict[Point, list[SampleResult]] = {point: [] for point in study.points()}
    for result in results:
        point = Point(result.variant, result.budget)
        if result.sample in sources and point in found:
            found[point].append(result)
    specs = study.variant_specs()
    places = {variant: at for at, variant in enumerate(specs)}
    names = dict(zip(specs, display_names([*specs.values()]), strict=True))
    return Points(
        model=study.model,
        n=len({*sources.values()}),
        rows=[
            _row(point, spec, names[point.variant], places[point.variant], own, sources)
            for (point, own), spec in zip(found.items(), study.specs, strict=True)
        ],
        notes=(),
        scenarios=frozenset({study.scenario}),
    )


def full_row(samples: Sequence[Sample], results: Collection[SampleResult]) -> Row:
    """The full cache alone."""
    sources = {sample.id: source(sample) for sample in samples}
    own = [each for each in results if each.variant == FULL and each.sample in sources]
    return _row(FULL_POINT, VariantSpec.parse(FULL), "Full cache", 0, own, sources)


def source(sample: Sample) -> str:
    """The name of the source that dependent samples share."""
    return sample.source or f"\0{sample.id}"


def point_of(row: Row) -> Point:
    """The study's own words for a row."""
    return Point(row.curve_spec, str(row.budget) if row.place else None)


def l1_answers(results: Iterable[SampleResult]) -> Interval | None:
    """Rank correlation of lower head L1 with a better score, mean over the samples.

    Among variants of one sample and budget, so that the budget itself has no part in it; None
    where nothing varies.
    """
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


def _row(
    point: Point,
    spec: VariantSpec,
    name: str,
    place: int,
    results: Sequence[SampleResult],
    sources: Mapping[str, str],
) -> Row:
    variant = VariantResult(
        spec=point.spec,
        label=spec.label,
        method=spec.method.name,
        critical=spec.critical,
        params=spec.params,
    )
    known = [r for r in results if r.cache_bytes is not None and r.full_cache_bytes]
    sizes = [[r.cache_bytes or 0 for r in known], [r.full_cache_bytes or 0 for r in known]]
    return Row(
        identity=identify(variant),
        name=name,
        label=spec.label,
        method=spec.method.name,
        spec=point.spec,
        curve_spec=point.variant,
        place=place,
        n=len({sources[result.sample] for result in results}),
        budget=Budget.parse(point.budget) if point.budget else None,
        read=lambda key: _by_source(results, _MEASURED.get(key, ""), sources),
        outcomes=Counter(result.outcome for result in results),
        memory=(fsum(sizes[0]) / len(sizes[0]), fsum(sizes[1]) / len(sizes[0])) if known else None,
        variants=(variant,),
    )


def _by_source(results: Sequence[SampleResult], name: str, sources: Mapping[str, str]) -> Values:
    found: dict[str, list[float]] = {}
    for result in results if name else ():
        if (value := getattr(result, name)) is not None:
            found.setdefault(sources[result.sample], []).append(value)
    return {source: sum(values) / len(values) for source, values in found.items()}
