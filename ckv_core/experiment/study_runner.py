"""Runs a study's samples: one prefill serves all points of one. Knows no model; no torch.

What is done is never done again, and each sample's results are handed on together, so the code
that stores them can stop, be killed and resume at any moment.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ckv_core.errors import CkvError, ConfigError, RunCancelledError
from ckv_core.experiment.scores import is_before_answer, score
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.records.events import Outcome, RunResult, TokensCounted
from ckv_core.records.metrics import metrics_in
from ckv_core.records.outcomes import raise_sentence
from ckv_core.records.records import ModelInfo, VariantResult
from ckv_core.records.run_request import Point, RunRequest

Todo = tuple[Sample, Sequence[Point]]  # a sample, and its points that are to be computed
Results = Sequence[SampleResult]  # of one sample
Commit = Callable[[Results], None]
Served = Callable[[ModelInfo, Mapping[str, str]], None]


class Engine(Protocol):
    """An engine computes whole samples: this process, the app's worker, or a cluster."""

    def results(self, study: RunRequest, todo: Sequence[Todo], served: Served) -> Iterator[Results]:
        """Results of all given points of a sample, as samples end.

        `served` gets the model and the versions before the results, and may refuse them.

        Raises:
            RunCancelledError: it was stopped, and so is the study.
            CkvError: something that is no sample's fault; the study ends with it.
        """


class Model(Protocol):
    """An engine of `run_samples` answers one request at a time."""

    def size(self, request: RunRequest) -> TokensCounted:
        """Of the request's prompt.

        Raises:
            CkvError: it cannot be tokenised.
        """

    def run_all(self, requests: Iterable[RunRequest]) -> Iterator[Outcome]:
        """The place of each request and its result, or why it has none, as they end.

        The next request is taken when it can begin.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a study is.

    Attributes:
        done, total: samples, those that stood before included.
        sample: the one that ended last, empty before the first.
        seconds_left: by the rate measured so far; None before the first sample.
    """

    done: int
    total: int
    sample: str
    seconds_left: float | None


def part_of(samples: Sequence[Sample], number: int, of: int) -> list[Sample]:
    """One of several equal parts; number is from 1."""
    return [sample for at, sample in enumerate(samples) if at % of == number - 1]


def open_samples(
    study: RunRequest, samples: Sequence[Sample], standing: Collection[Key]
) -> list[Todo]:
    """Samples with their points that have no result yet, where there are any."""
    points = study.points()
    todo = [
        (each, [at for at in points if (each.id, at.variant, at.budget) not in standing])
        for each in samples
    ]
    return [(sample, left) for sample, left in todo if left]


def run_study(
    engine: Engine,
    study: RunRequest,
    samples: Sequence[Sample],
    standing: Collection[Key],
    commit: Commit,
    served: Served,
) -> Iterator[Progress]:
    """Run what is not there yet; yields before the first sample and after each.

    `standing`: results that stand; the others are computed, also what failed and may pass.
    `commit`: stores the results of one sample, all or none of them.

    Raises:
        CkvError: as of `Engine.results`; what was committed stays.
        StorageError: the results cannot be stored.
    """
    todo = open_samples(study, samples, standing)
    stood, started = len(samples) - len(todo), time.monotonic()
    yield Progress(done=stood, total=len(samples), sample="", seconds_left=None)
    for count, results in enumerate(engine.results(study, todo, served) if todo else (), 1):
        commit(results)
        left = (time.monotonic() - started) / count * (len(todo) - count)
        last, done = results[0].sample, stood + count
        yield Progress(done=done, total=len(samples), sample=last, seconds_left=left)


def run_samples(
    study: RunRequest, todo: Iterable[Todo], model: Model
) -> Iterator[list[SampleResult]]:
    """Results of the given points of each sample, in the order in which samples end.

    What cannot run fails with its reason, alone where it can.

    Raises:
        RunCancelledError: the model was stopped.
    """
    pending: list[_PendingSample] = []
    never: list[_PendingSample] = []

    def requests() -> Iterator[RunRequest]:
        for sample, points in todo:
            one = _pending(study, sample, points, model)
            if one.fit:
                pending.append(one)
                yield sample.request(study, one.fit)
            else:
                never.append(one)

    for place, outcome in model.run_all(requests()):
        yield pending[place].results(outcome)
        while never:
            yield never.pop().results(RunResult())
    while never:
        yield never.pop().results(RunResult())


@dataclass(frozen=True, slots=True)
class _PendingSample:
    """Points of a sample, and why some cannot run on it."""

    study: RunRequest
    sample: Sample
    points: Sequence[Point]
    refused: Mapping[Point, CkvError]

    @property
    def fit(self) -> list[Point]:
        return [point for point in self.points if point not in self.refused]

    def results(self, outcome: RunResult | CkvError) -> list[SampleResult]:
        """Of every point."""
        if isinstance(outcome, CkvError):
            return failed_sample(self.sample, self.points, outcome, self.refused)
        variants = dict(zip(self.fit, outcome.variants, strict=True))
        return [
            _failed(self.sample, point, self.refused[point])
            if point in self.refused
            else _result(self.study, self.sample, point, variants[point], outcome)
            for point in self.points
        ]


def _pending(
    study: RunRequest, sample: Sample, points: Sequence[Point], model: Model
) -> _PendingSample:
    """A point is refused where its budget does not hold what is always kept of the prompt."""
    refused: dict[Point, CkvError] = {}
    try:
        request = sample.request(study, points)
        size = model.size(request)
        for point, spec in zip(request.points(), request.specs, strict=True):
            try:
                spec.check_prompt(size.compressed_tokens, size.question_tokens)
            except ConfigError as error:
                refused[point] = error
    except RunCancelledError:  # stopped while it was counted, which is no result
        raise
    except CkvError as error:
        refused = dict.fromkeys(points, error)
    return _PendingSample(study, sample, points, refused)


def failed_sample(
    sample: Sample,
    points: Sequence[Point],
    reason: CkvError,
    refused: Mapping[Point, CkvError] | None = None,
) -> list[SampleResult]:
    """All points of a sample failed for one reason, but those that were refused for their own."""
    return [_failed(sample, point, (refused or {}).get(point, reason)) for point in points]


def _failed(sample: Sample, point: Point, error: CkvError) -> SampleResult:
    return SampleResult(
        sample=sample.id,
        variant=point.variant,
        budget=point.budget,
        state="failed",
        reason=str(error),
        for_good=error.for_good,
    )


def _result(
    study: RunRequest, sample: Sample, point: Point, variant: VariantResult, run: RunResult
) -> SampleResult:
    try:
        found: float | None = score(variant.text, sample, study.metric)
    except CkvError as error:
        return _failed(sample, point, error)
    is_cut = variant.stopped == "length" and not sample.max_new_tokens
    if is_cut and is_before_answer(variant.text, found or 0.0, sample, study.metric):
        found = None
    return SampleResult(
        sample=sample.id,
        variant=point.variant,
        budget=point.budget,
        state="done",
        score=found,
        reason=raise_sentence(1, 1) if found is None and variant.loops else "",
        text=variant.text,
        stopped=variant.stopped,
        prompt_tokens=run.prompt.tokens if run.prompt else None,
        figures={
            key: float(value)
            for key, metric in metrics_in("samples").items()
            if (value := metric.read(variant)) is not None
        },
    )
