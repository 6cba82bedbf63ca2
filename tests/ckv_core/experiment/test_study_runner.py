"""A study's results are those of single comparisons; what stands is never run again."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from ckv_core.engine.compare import compare
from ckv_core.engine.prompt import build_prompt
from ckv_core.errors import CkvError, ConfigError, NoRoomError, RunCancelledError
from ckv_core.experiment import study_runner
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.experiment.study_runner import (
    failed_sample,
    run_samples,
    run_study,
)
from ckv_core.records.events import Outcome, RunResult, TokensCounted
from ckv_core.records.run_request import Point, RunRequest
from tests.factories.events import folded
from tests.factories.models import tiny_model

pytestmark = pytest.mark.slow

STUDY = RunRequest(
    name="tiny",
    data={"file": "x"},
    scenario="context-only",
    variants=("snapkv", "adakv+critical", "streaming_llm"),
    budgets=("30%", "60%"),
    max_new_tokens=6,
)
SAMPLES = [
    Sample(
        id=f"s{at}",
        context=f"Line {at}. " + "The ferry left at nine and nobody waved. " * (4 + at),
        question="When did it leave?",
        answers=("nine",),
    )
    for at in range(3)
]


class TinyEngine:
    """Runs on the tiny model, and counts what it is asked."""

    def results(self, study, todo, _):
        return run_samples(study, todo, self)

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def size(self, request: RunRequest) -> TokensCounted:
        tokenizer = tiny_model("llama").tokenizer
        prompt = build_prompt(tokenizer, request.context, request.question, request.scenario)
        question = len(prompt.question)
        return TokensCounted(prompt.tokens, prompt.compressed_tokens, question_tokens=question)

    def run_all(self, requests: Iterable[RunRequest]) -> Iterator[Outcome]:
        for place, request in enumerate(requests):
            yield place, self.run(request)

    def run(self, request: RunRequest) -> RunResult | CkvError:
        self.asked.append(tuple(point.spec for point in request.points()))
        return single(request)


def of_sample(study: RunRequest, sample: Sample, points: Sequence[Point]) -> list[SampleResult]:
    (results,) = run_samples(study, [(sample, points)], TinyEngine())
    return results


def ran(engine: TinyEngine, commit, standing=(), study: RunRequest = STUDY):
    return run_study(engine, study, SAMPLES, standing, commit, lambda *_: None)


def single(request: RunRequest) -> RunResult:
    return folded(compare(request, tiny_model("llama")))


@pytest.fixture(scope="module")
def whole() -> dict[Key, SampleResult]:
    """What the whole study comes to."""
    todo = [(sample, STUDY.points()) for sample in SAMPLES]
    return {
        each.key: each for results in run_samples(STUDY, todo, TinyEngine()) for each in results
    }


def test_every_point_is_what_a_comparison_of_it_alone_gives(whole):
    assert len(whole) == len(SAMPLES) * len(STUDY.points()) == 21
    for sample in SAMPLES[::2]:
        for point in STUDY.points():
            request = RunRequest(
                context=sample.context,
                question=sample.question,
                scenario=STUDY.scenario,
                variants=(point.spec,),
                max_new_tokens=STUDY.max_new_tokens,
            )
            (alone,) = single(request).variants
            result = whole[sample.id, point.variant, point.budget]
            assert (result.state, result.text) == ("done", alone.text)
            for name in ("cache_bytes", "budget_tokens", "read_bytes"):
                assert result.figures[name] == getattr(alone.receipt, name)
            right = "nine" in alone.text.lower()
            assert result.score == (float(right) if right or alone.stopped == "eos" else None)


def test_a_budget_that_is_too_small_fails_alone_and_says_why():
    study = replace(STUDY, budgets=("1%", "60%"))
    found = of_sample(study, SAMPLES[0], study.points())
    by_point = {(result.variant, result.budget): result for result in found}
    assert by_point["full", None].state == by_point["snapkv", "60%"].state == "done"
    assert by_point["snapkv", "1%"].state == "failed"
    assert "raise the budget" in by_point["snapkv", "1%"].reason
    assert by_point["snapkv", "1%"].for_good


def test_what_stands_is_not_run_again_and_failures_are():
    engine, stored = TinyEngine(), {}

    def commit(results):
        assert len({result.sample for result in results}) == 1
        stored.update((result.key, result) for result in results)

    assert [p.done for p in ran(engine, commit)] == [0, 1, 2, 3]
    assert len(stored) == 3 * 7
    again = TinyEngine()
    [*ran(again, commit, stored)]
    assert not again.asked
    [*ran(again, commit, stored.keys() - {("s1", "snapkv", "30%")})]
    assert again.asked == [("snapkv:budget=30%",)]
    wider = replace(STUDY, budgets=("30%", "45%", "60%"))
    [*ran(again, commit, stored, wider)]
    assert {spec.rpartition("=")[2] for asked in again.asked[1:] for spec in asked} == {"45%"}


def test_a_sample_that_cannot_be_asked_for_is_told_before_the_others_have_ended():
    study = replace(STUDY, variants=("snapkv",), budgets=("1%",))
    order: list[str] = []

    class Counting(TinyEngine):
        def size(self, request):
            if request.context.startswith("Line 0"):
                raise ConfigError("Too long.")
            return super().size(request)

    def commit(results):
        order.append(results[0].sample)

    [*ran(Counting(), commit, study=study)]
    assert order == ["s1", "s0", "s2"]


def test_a_sample_that_fails_does_not_end_the_study():
    class Failing(TinyEngine):
        def run(self, request):
            if request.context.startswith("Line 1"):
                return ConfigError("No.")
            if request.context.startswith("Line 2"):
                return NoRoomError("Not now.")
            return super().run(request)

    found: list[SampleResult] = []
    [*ran(Failing(), found.extend)]
    failed = {(r.sample, r.reason, r.score, r.for_good) for r in found if r.state == "failed"}
    assert failed == {("s1", "No.", None, True), ("s2", "Not now.", None, False)}


def test_a_study_that_is_stopped_keeps_what_was_committed():
    class Stopped(TinyEngine):
        def run(self, request):
            if len(self.asked) == 1:
                raise RunCancelledError
            return super().run(request)

    found: list[SampleResult] = []
    with pytest.raises(RunCancelledError):
        [*ran(Stopped(), found.extend)]
    assert {result.sample for result in found} == {"s0"}


def test_what_is_left_follows_from_the_time_that_each_sample_took(monkeypatch):
    ticks = itertools.count(0, 6)  # one look at the start, one after each sample
    monkeypatch.setattr(study_runner.time, "monotonic", lambda: next(ticks))

    class Failing(TinyEngine):
        def results(self, study, todo, _):
            return (failed_sample(*each, CkvError("No room.")) for each in todo)

    progress = [*ran(Failing(), lambda _: None)]
    assert [each.seconds_left for each in progress] == [None, 12, 6, 0]
    assert [each.done for each in progress] == [0, 1, 2, 3]


def test_points_without_the_full_cache_are_measured_against_it_all_the_same(whole):
    (alone,) = of_sample(STUDY, SAMPLES[0], [Point("snapkv", "30%")])
    same = whole[alone.key]
    assert alone.text == same.text
    assert alone.figures["head"] == pytest.approx(same.figures["head"], rel=1e-4)
