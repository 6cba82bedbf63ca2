"""Runs of one sample, and results of many, as the one long table; L1 against answers. No torch.

Of runs that are read together a prompt, and a variant on it, counts once.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import fsum, isnan

import numpy as np

from ckv_core.errors import ConfigError
from ckv_core.experiment.names import curve_name, display_names
from ckv_core.experiment.points import POINT_METRICS, Points, Row, Values
from ckv_core.experiment.rounding import floor_by_metric
from ckv_core.experiment.stats import Interval, difference_interval, interval_note, rank_correlation
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.methods.parameters import Budget
from ckv_core.records.events import RunResult
from ckv_core.records.identity import Identity, identify, unique_specs
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import cut_note, writes_same_text
from ckv_core.records.records import RoundingFloor, VariantResult
from ckv_core.records.run_request import FULL, Point, RunRequest
from ckv_core.records.variants import VariantSpec, spec_without

REPEATS = "{} left out: a newer run has the same method on the same prompt, which counts once."
_NAMED = 4  # SPECs in a sentence; of more it says how many


@dataclass(slots=True)
class _Joined:
    """One variant by prompt, the floor of the run that it is from, and its index in the newest."""

    variants: dict[int, VariantResult] = field(default_factory=dict)
    floors: dict[int, RoundingFloor | None] = field(default_factory=dict)
    index: int = 0

    @property
    def first(self) -> VariantResult:
        return next(iter(self.variants.values()))

    @property
    def is_full(self) -> bool:
        return self.first.method == "full"


def together(results: Sequence[RunResult]) -> Points:
    """Runs of the same prompt as one, and variants of the same settings over the prompts.

    Args:
        results: oldest first: of a variant that several runs of one prompt have, the last counts.

    Raises:
        ConfigError: no run, other models, or no variant that any two of several prompts share.
    """
    if not results:
        raise ConfigError("There is nothing to average; run at least one prompt.")
    _check_models(results)
    scenarios = frozenset(run.prompt.scenario for run in results if run.prompt)
    joined: dict[Identity, _Joined] = {}
    keys: dict[Hashable, int] = {}
    prompts = [  # a number per run, equal where the prompt is the same; one without is alone
        keys.setdefault((p.scenario, p.compressed_tokens, p.token_ids) if p else at, at)
        for at, p in enumerate(run.prompt for run in results)
    ]
    repeats = 0
    for run, prompt in zip(results, prompts, strict=True):
        # Means over both scenarios would be of neither.
        more = {"scenario": run.prompt.scenario} if run.prompt and len(scenarios) > 1 else {}
        for index, variant in enumerate(run.variants):
            own = joined.setdefault(identify(variant, **more), _Joined())
            repeats += prompt in own.variants and variant.method != "full"
            own.variants[prompt], own.floors[prompt], own.index = variant, run.floor, index
    n = len(set(prompts))
    shared = [len(each.variants) > 1 for each in joined.values() if not each.is_full]
    if n > 1 and shared and not any(shared):
        raise ConfigError(
            "The runs have no method in common; run the same methods with the same budget, alpha "
            "and parameters on each prompt, in the same scenario."
        )
    rows = _rows(joined, is_one=len(results) == 1)
    left = "1 result is" if repeats == 1 else f"{repeats:,} results are"
    notes = [REPEATS.format(left)] if repeats else []
    if len(scenarios) > 1:
        notes.append("The runs mix the scenarios regular and context-only: a row each.")
    model = results[0].model
    return Points(
        model=model.name if model else "",
        n=n,
        rows=rows,
        notes=[*notes, *_notes(n, rows)] if len(results) > 1 else [],
        scenarios=scenarios,
    )


def _check_models(results: Sequence[RunResult]) -> None:
    models = [run.model for run in results if run.model]
    weights = {model.sha256 or model.name for model in models}
    if len(weights) > 1:
        names = ", ".join(sorted({model.name for model in models}))
        raise ConfigError(
            f"The runs are of {len(weights)} different models ({names}); their metrics have no "
            "common scale. Choose runs of one model."
        )
    if len(dtypes := {model.dtype for model in models}) > 1:
        raise ConfigError(
            f"The runs computed in {' and '.join(sorted(dtypes))}, which moves every metric. "
            "Choose runs of one type."
        )


def _rows(joined: Mapping[Identity, _Joined], *, is_one: bool) -> list[Row]:
    specs = unique_specs({identity: each.first.spec for identity, each in joined.items()})
    others = dict.fromkeys(same.settings for same, each in joined.items() if not each.is_full)
    places = {settings: place for place, settings in enumerate(others, 1)}
    curves: dict[object, str] = {}
    for identity, spec in specs.items():
        curves.setdefault(identity.settings, spec_without(spec, "budget"))
    units = {same.budget.unit for same in joined if same.budget}

    def budget(identity: Identity, first: VariantResult) -> Budget | None:
        """As requested; of one run with several units as resolved, so that they share an axis."""
        tokens = first.receipt.budget_tokens if first.receipt else 0
        if is_one and not tokens:
            return None
        is_mixed = is_one and identity.budget and len(units) > 1
        return Budget(float(tokens), "tokens") if is_mixed else identity.budget

    return [
        replace(
            _row(identity, each, specs[identity], curves[identity.settings]),
            place=places.get(identity.settings, 0),
            budget=budget(identity, each.first),
        )
        for identity, each in joined.items()
    ]


def _row(identity: Identity, joined: _Joined, spec: str, curve_spec: str) -> Row:
    by_prompt, variants = joined.variants, [*joined.variants.values()]
    texts = [same for each in variants if (same := writes_same_text(each)) is not None]
    receipts = [each.receipt for each in variants if each.receipt is not None]
    bytes_of = [[r.cache_bytes for r in receipts], [r.full_cache_bytes for r in receipts]]
    floors = {at: floor_by_metric(floor) for at, floor in joined.floors.items()}

    def known(key: str) -> dict[Hashable, float]:
        read = {prompt: POINT_METRICS[key].read(variant) for prompt, variant in by_prompt.items()}
        return {at: value for at, value in read.items() if value is not None and not isnan(value)}

    return Row(
        identity=identity,
        name=curve_name(joined.first.label, identity.settings.alpha, spec),
        label=joined.first.label,
        method=joined.first.method,
        spec=spec,
        curve_spec=curve_spec,
        place=0,
        n=len(variants),
        budget=identity.budget,
        read=known,
        floors={
            key: {at: floor[key] for at, floor in floors.items() if key in floor}
            for key in ("final", "kl")
        },
        outcomes=Counter(each.outcome for each in variants if each.outcome),
        memory=(fsum(bytes_of[0]) / len(receipts), fsum(bytes_of[1]) / len(receipts))
        if receipts
        else None,
        same=(sum(texts), len(texts)) if texts else None,
        variants=tuple(variants),
        index=joined.index,
    )


def _notes(n: int, rows: Sequence[Row]) -> Iterator[str]:
    """What a reader of the means has to know."""
    compared = [row for row in rows if row.place]
    fewer = [row.spec for row in compared if row.n < n]
    if fewer:
        more = len(fewer) - _NAMED
        listed = ", ".join(fewer[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield (
            f"{len(fewer)} of {len(compared)} rows were run on fewer than all {n} prompts "
            f"({listed}); only metrics of the same prompts compare."
        )
    if note := interval_note(n, min((row.n for row in rows), default=n)):
        yield note
    yield from dict.fromkeys(note for row in rows if (note := _alpha_note(row.variants)))
    if note := cut_note([variant for row in rows for variant in row.variants]):
        yield note


def _alpha_note(variants: Sequence[VariantResult]) -> str:
    """SPEC and params of a method without CriticalKV do not distinguish such runs."""
    bounded = [v for v in variants if "sigma_stage1" in v.analysis and not v.critical]
    alphas = {read for v in bounded if (read := METRICS["stage1_alpha"].read(v)) is not None}
    if len(alphas) < 2:
        return ""
    return (
        f"The runs' alphas of stage 1 differ ({', '.join(f'{a:g}' for a in sorted(alphas))}). To "
        "read sigma, theta-hat and relaxed theta of methods without CriticalKV, average runs of "
        "one alpha."
    )


# --- the results of a run of many samples as the one long table; L1 against answers ---

FULL_POINT = Point(FULL, None)  # the one that each study has


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
            _sample_row(point, spec, names[point.variant], places[point.variant], own, sources)
            for (point, own), spec in zip(found.items(), study.specs, strict=True)
        ],
        notes=(),
        scenarios=frozenset({study.scenario}),
        against=study.baseline_point.spec,
    )


def source(sample: Sample) -> str:
    """The name of the source that dependent samples share."""
    return sample.source or f"\0{sample.id}"


def point_of(row: Row) -> Point:
    """The study's own words for a row."""
    return Point(row.curve_spec, str(row.budget) if row.place else None)


def sample_request(
    study: RunRequest, samples: Iterable[Sample], sample: str, budget: str = ""
) -> RunRequest:
    """A sample with all methods of its study for the Compare form.

    `sample` and `budget` may be anything; a budget that is none of the study's is the smallest.

    Raises:
        ConfigError: there is no such sample.
    """
    own = next((each for each in samples if each.id == sample), None)
    if own is None:
        raise ConfigError(f"The study has no sample {sample[:80]!r}.")
    _, *points = study.points()
    budgets = [point.budget or "" for point in points]
    return RunRequest(
        context=own.context,
        question=own.question,
        answer=own.answers[0],
        answer_prefix=own.answer_prefix,
        protect=own.protect,
        scenario=study.scenario,
        model=study.model,
        variants=(FULL, *dict.fromkeys(point.variant for point in points)),
        max_new_tokens=own.max_new_tokens or study.max_new_tokens,
        budgets=(budget if budget in budgets else budgets[0],),
        repeats=study.repeats,
    )


def l1_answers(results: Iterable[SampleResult]) -> Interval | None:
    """Rank correlation of lower head L1 with a better score, mean over the samples.

    Among variants of one sample and budget, so that the budget itself has no part in it; None
    where nothing varies.
    """
    known = [r for r in results if "head" in r.figures and r.score is not None]
    known.sort(key=lambda r: (r.sample, r.budget or ""))
    by_sample: dict[str, list[float]] = {}
    for (sample, _), group in groupby(known, key=lambda r: (r.sample, r.budget)):
        points = [(-r.figures["head"], float(r.score or 0)) for r in group]
        l1, scores = np.array(points).T
        if len(points) >= 3 and np.ptp(l1) > 0 and np.ptp(scores) > 0:
            by_sample.setdefault(sample, []).append(rank_correlation(l1, scores))
    means = [sum(each) / len(each) for each in by_sample.values()]
    return difference_interval(means) if means else None


def _sample_row(
    point: Point,
    spec: VariantSpec,
    name: str,
    place: int,
    results: Sequence[SampleResult],
    sources: Mapping[str, str],
) -> Row:
    variant = VariantResult.of(spec, point.spec)
    names = ("cache_bytes", "full_cache_bytes")
    known = [r.figures for r in results if r.figures.keys() >= {*names}]
    sizes = [[each[name] for each in known] for name in names]
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
        read=lambda key: _by_source(results, key, sources),
        outcomes=Counter(result.outcome for result in results),
        memory=(fsum(sizes[0]) / len(sizes[0]), fsum(sizes[1]) / len(sizes[0])) if known else None,
        variants=(variant,),
    )


def _by_source(results: Sequence[SampleResult], key: str, sources: Mapping[str, str]) -> Values:
    found: dict[str, list[float]] = {}
    for result in results:
        value = result.score if key == "score" else result.figures.get(key)
        if value is not None and not isnan(value):
            found.setdefault(sources[result.sample], []).append(value)
    return {source: sum(values) / len(values) for source, values in found.items()}
