"""A study recommends only what its samples can carry, and says so in plain words."""

from dataclasses import replace

import pytest
from scipy.stats import spearmanr

from ckv_core.experiment.decide import random_order
from ckv_core.experiment.decision import decide_study
from ckv_core.experiment.runs import FULL_POINT, l1_answers, point_of, read_results, together
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.records.run_request import Point, RunRequest
from tests.factories.runs import on_prompt, variant
from tests.factories.scored import plain_samples, scored

STUDY = RunRequest(
    name="made up",
    data={"file": "x"},
    variants=("snapkv", "snapkv+critical"),
    budgets=("10%", "50%"),
)


def made(n: int, right: dict[Point, set[int]]) -> tuple[list[Sample], list[SampleResult]]:
    """Samples, and results that are right for these numbers."""
    samples = plain_samples(n)
    results = [
        scored(
            sample.id,
            point.variant,
            point.budget,
            float(at in right.get(point, set())),
            head_l1=None if point == FULL_POINT else 1.0,
        )
        for point in STUDY.points()
        for at, sample in enumerate(samples)
    ]
    return samples, results


def everybody(n: int) -> dict[Point, set[int]]:
    """Right in all samples at all points."""
    return {point: set(range(n)) for point in STUDY.points()}


def test_a_method_that_loses_nothing_is_recommended_at_its_smallest_budget():
    right = everybody(120) | {Point("snapkv+critical", "10%"): set(range(50))}
    decision = decide_study(STUDY, *made(120, right))
    assert decision.recommended is not None
    assert (decision.recommended.variant, decision.recommended.budget) == ("snapkv", "10%")
    assert decision.sentence == (
        "SnapKV at 10 % stays within your tolerance of 5 points: it loses at most 3.5 (95 %). "
        "The full cache scores 100 of 100 on 120 samples. "
        "The other method keeps the score too."
    )
    kept, lost = decision.methods
    assert [kept.points[budget].state for budget in ("10%", "50%")] == ["keeps", "keeps"]
    assert [lost.points[budget].state for budget in ("10%", "50%")] == ["loses", "keeps"]
    assert kept.sentence == "SnapKV at 10 % of the cache: loses at most 3.5 points."
    assert (decision.n, decision.cautions) == (120, ())


def test_the_same_on_few_samples_is_not_claimed_and_the_reader_learns_how_many_it_takes():
    samples, results = made(40, everybody(40))
    decision = decide_study(STUDY, samples, results)
    assert decision.recommended is None
    assert decision.sentence == (
        "Cannot tell yet: SnapKV at 50 % may lose up to 8.5 points (95 %), and your tolerance is "
        "5. The full cache scores 100 of 100 on 40 samples. SnapKV lost nothing so far. About 50 "
        "more samples would settle it, if nothing more is lost. "
        "The other method cannot be decided yet."
    )
    assert decision.more == 50
    assert decision.cautions == ()
    assert decision.size == (
        "With 2 methods, 40 samples can confirm a loss of at most 10.1 points, or 18.9 if one "
        "answer is lost. To confirm 5 points takes 84 samples, 2 points 212."
    )
    found = decide_study(replace(STUDY, tolerance=15.0), samples, results).recommended
    assert found is not None
    assert found.budget == "10%"


def test_where_every_method_loses_the_best_one_is_named():
    right = everybody(60) | {
        point: set(range(30 if point.variant == "snapkv+critical" else 20))
        for point in STUDY.points()[1:]
    }
    said = decide_study(STUDY, *made(60, right)).sentence
    best = "CriticalKV-SnapKV (paper), the best, loses"
    assert said.startswith(f"Both methods lose more than 5 points at 50 %: {best}")
    assert said.endswith("on 60 samples. Try a larger budget.")


def test_where_the_full_cache_answers_too_little_no_method_is_said_to_keep_it():
    decision = decide_study(STUDY, *made(200, {FULL_POINT: set(range(8))}))
    assert decision.recommended is None
    assert decision.sentence == (
        "No method can be confirmed: the full cache scores 4 of 100, too low to see a loss of "
        "5 points. Use a larger model or an easier task."
    )
    assert "scores 4 of 100, below 60" in decision.cautions[0]


def test_what_is_not_measured_is_not_told_as_none():
    samples, results = made(40, everybody(40))
    for some in ([], results[:1], [each for each in results if each.budget != "50%"]):
        decision = decide_study(STUDY, samples, some)
        assert {each.outcome for each in decision.methods} == {"unmeasured"}
        wait = "Cannot tell yet: a decision needs two samples with all methods and budgets done."
        assert decision.sentence == (wait if some else "There is no result yet.")
        assert "0 of 40 samples count so far" in decision.cautions[-1]


def test_samples_count_in_their_order_up_to_the_first_that_is_not_done():
    samples, results = made(120, everybody(120))
    done = {sample.id for sample in samples[:100]} | {samples[110].id}
    decision = decide_study(STUDY, samples, [r for r in results if r.sample in done])
    assert decision.n == 100
    assert decision.sentence.count("100 samples") == 1
    assert decision.cautions == (
        "95 results are not there yet; resume the study. 100 of 120 samples count so far: in the "
        "study's random order, those before the first that is not done.",
    )


def test_what_is_added_to_a_text_that_counted_is_in_tables_only():
    samples, results = made(90, everybody(90))
    samples[-1] = replace(samples[-1], source="s")
    samples[0] = replace(samples[0], source="s")
    decision = decide_study(STUDY, samples, results)
    assert decision.n == 89
    assert "1 sample was added to texts that counted" in decision.cautions[-1]
    assert read_results(STUDY, samples, results).rows[0].mean("score").n == 89


def test_neither_ids_nor_the_order_of_arrival_move_a_verdict():
    right = everybody(120) | {Point("snapkv", "10%"): set(range(117))}
    samples, results = made(120, right)
    order = random_order(range(120))
    moved = [samples[at] for at in order]
    names = {sample.id: f"x{at * 37 % 120}" for at, sample in enumerate(samples)}
    renamed = [replace(sample, id=names[sample.id]) for sample in moved]
    theirs = [replace(each, sample=names[each.sample]) for each in reversed(results)]
    assert decide_study(STUDY, renamed, theirs) == decide_study(STUDY, samples, results)


def test_a_study_that_is_read_once_says_nothing_before_its_end():
    samples, results = made(80, everybody(80) | {Point("snapkv+critical", "50%"): set(range(50))})
    once = replace(STUDY, read_once=True)
    before = decide_study(once, samples, results[:-1])
    assert before.recommended is None
    assert before.sentence == (
        "No decision yet: this study is read once, when all its 80 samples are done."
    )
    assert decide_study(STUDY, samples, results).recommended is None  # it takes 84
    assert decide_study(once, samples, results).recommended is not None


def test_methods_and_tolerances_of_before_are_not_forgotten():
    earlier = replace(STUDY, variants=("snapkv", "knorm"), tolerance=2.0)
    now = STUDY.after(earlier)
    assert (now.earlier_variants, now.earlier_tolerances) == (("knorm",), (2.0,))
    assert STUDY.after(now).after(STUDY) == now.after(STUDY)
    assert earlier.after(now).earlier_tolerances == (5.0,)
    right = everybody(85) | {Point("snapkv+critical", "50%"): set(range(50))}
    samples, results = made(85, right)
    assert decide_study(STUDY, samples, results).recommended is not None
    decision = decide_study(now, samples, results)
    assert decision.recommended is None  # 3 methods, and 85 samples are enough for 2
    assert "before it was 2 points" in decision.cautions[-1]


def test_failures_that_come_again_are_told_from_those_that_may_pass():
    samples, results = made(4, {FULL_POINT: set(range(4))})
    failed = {"state": "failed", "score": None}
    refused = [
        replace(r, reason="Raise the budget.", for_good=True, **failed)
        if r.budget == "10%"
        else replace(r, reason="Memory ran out.", **failed)
        if r.sample == samples[0].id and r.budget
        else r
        for r in results
    ]
    told = decide_study(STUDY, samples, refused).cautions
    assert "8 results failed and fail each time: Raise the budget." in told
    assert "2 results failed and may pass; run the study again for them: Memory ran out." in told


def test_a_cut_answer_is_neither_right_nor_wrong():
    samples = plain_samples(400)
    lost = {sample.id for sample in samples[:200]}
    results = [
        scored(sample.id, point.variant, point.budget, 1.0, stopped="eos")
        if point == FULL_POINT or sample.id not in lost
        else scored(sample.id, point.variant, point.budget, None, stopped="length")
        for sample in samples
        for point in STUDY.points()
    ]
    _, row, *_ = read_results(STUDY, samples, results).rows
    assert (row.mean("score").n, row.outcomes["cut"], row.mean("score").mean) == (200, 200, 1.0)
    decision = decide_study(STUDY, samples, results)
    assert {method.outcome for method in decision.methods} == {"undecided"}
    assert decision.cautions[0].startswith(
        "800 of 2,000 answers stopped at the limit of 64 new tokens. Their scores are unknown"
    )
    assert "may lose up to 5" in decision.sentence
    assert "lost nothing so far." in decision.sentence
    full = [replace(r, score=None, stopped="length") for r in results if r.budget is None]
    rest = [r for r in results if r.budget is not None]
    assert decide_study(STUDY, samples, [*full, *rest]).sentence == (
        "The full cache's own answers all stopped at the limit of 64 new tokens."
    )


def test_lower_l1_with_better_answers_is_told_within_a_budget():
    variants = ("snapkv", "adakv", "knorm")
    samples = plain_samples(12)
    results = [
        scored(
            sample.id,
            variant,
            budget,
            float(place == 0),
            head_l1=place + (100.0 if budget == "10%" else 0.0),
        )
        for sample in samples
        for budget in STUDY.budgets
        for place, variant in enumerate(variants)
    ]
    found = l1_answers(results)
    assert found is not None
    assert found.n == 12
    assert found.mean == pytest.approx(spearmanr([2, 1, 0], [1, 0, 0]).statistic)


def test_equal_numbers_have_equal_intervals_in_a_study_and_over_prompts():
    right = [at % 4 != 0 for at in range(12)]
    samples, results = made(
        12,
        {
            FULL_POINT: set(range(12)),
            Point("snapkv", "10%"): {at for at, each in enumerate(right) if each},
        },
    )
    study = read_results(STUDY, samples, results)
    pair = next(p for p in study.pairs if point_of(p.row) == Point("snapkv", "10%"))
    runs = [
        on_prompt(
            at,
            variant("full", answer_found=True, stopped="eos"),
            variant("snapkv", answer_found=each, stopped="eos"),
        )
        for at, each in enumerate(right)
    ]
    found = together(runs)
    (other,) = found.pairs
    one, two = other.differences["answer"], pair.differences["score"]
    assert replace(one, holm_p=None) == replace(two, holm_p=None)
    assert next(row for row in found.rows if row.place).mean("answer") == pair.row.mean("score")
