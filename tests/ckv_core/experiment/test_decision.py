"""A study recommends only what its samples can carry, and says so in plain words."""

from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.decision import KINDS, errors, evidence, samples_to_confirm
from ckv_core.errors import ConfigError
from ckv_core.experiment import reading, sentences
from ckv_core.experiment.decide import (
    PointDecision,
    closed,
    counted,
    decide,
    fewest_sources,
    least_tolerance,
    log_e_keeps,
    log_e_loses,
    losses,
    random_order,
)
from ckv_core.experiment.next_step import next_of_samples
from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import FULL_POINT, l1_answers, point_of, read_results, together
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.records.run_request import Point, RunRequest
from tests.factories.runs import on_prompt, variant
from tests.factories.scored import plain_samples, scored
from tests.reference import decision as reference

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
            figures={} if point == FULL_POINT else {"head": 1.0},
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
    decision = Reading(STUDY, *made(120, right)).decision
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
    assert kept.sentence == "SnapKV at 10 %: loses at most 3.5 points."
    assert (decision.n, decision.cautions) == (120, ())
    for tolerance, state in ((2.86, "keeps"), (2.84, "undecided")):  # the border is at 2.85
        alike = made(120, everybody(120))
        (found, _) = Reading(replace(STUDY, tolerance=tolerance), *alike).decision.methods
        assert found.points["10%"].state == state


def test_the_same_on_few_samples_is_not_claimed_and_the_reader_learns_how_many_it_takes():
    samples, results = made(40, everybody(40))
    decision = Reading(STUDY, samples, results).decision
    assert decision.recommended is None
    assert decision.sentence == (
        "Cannot tell yet: SnapKV at 50 % may lose up to 8.5 points (95 %), and your tolerance is "
        "5. The full cache scores 100 of 100 on 40 samples. SnapKV lost nothing so far. About 84 "
        "samples in all would settle it, if nothing more is lost. "
        "The other method cannot be decided yet."
    )
    gained = PointDecision("undecided", -0.0625, 0.235, None, 53)
    assert sentences.settled_by(gained, 16).endswith("if the gain stays at 6.2 points.")
    assert decision.more == 44
    assert decision.cautions == ()
    assert decision.size == (
        "With 2 methods, 40 samples can confirm that a method loses at most 10.1 points (18.9 "
        "if one answer is lost). Confirming 5 points takes 84 samples in all; 2 points takes 212."
    )
    found = Reading(replace(STUDY, tolerance=15.0), samples, results).decision.recommended
    assert found is not None
    assert found.budget == "10%"


def test_where_every_method_loses_the_best_one_is_named():
    right = everybody(60) | {
        point: set(range(30 if point.variant == "snapkv+critical" else 20))
        for point in STUDY.points()[1:]
    }
    sentence = Reading(STUDY, *made(60, right)).decision.sentence
    best = "CriticalKV-SnapKV (paper), the best, loses"
    assert sentence.startswith(f"Both methods lose more than 5 points at 50 %: {best}")
    assert sentence.endswith("on 60 samples. Try a larger budget.")


def test_where_the_full_cache_answers_too_little_no_method_is_said_to_keep_it():
    decision = Reading(STUDY, *made(200, {FULL_POINT: set(range(8))})).decision
    assert decision.recommended is None
    assert decision.sentence == (
        "No method can be confirmed: the full cache scores 4 of 100, too low to see a loss of "
        "5 points. Use a larger model or an easier task."
    )
    assert "scores 4 of 100, below 60" in decision.cautions[0]
    for right, is_too_low in ((2, True), (3, False)):  # 60 of 100 is enough
        found = Reading(STUDY, *made(5, {FULL_POINT: set(range(right))})).decision
        assert found.sentence.startswith("No method can be confirmed: the full") == is_too_low
        assert ("below 60" in " ".join(found.cautions)) == is_too_low


TOP = everybody(120)
NONE: dict[Point, set[int]] = {FULL_POINT: set(range(120))}
LOST_LOW = TOP | {point: set(range(50)) for point in STUDY.points() if point.budget == "10%"}
PLAN = "ckv plan --model SmolLM2-135M-Instruct --memory 80GiB --prompt {} --variant {} computes"


@pytest.mark.parametrize(
    ("right", "changes", "tokens", "step"),
    [
        (TOP, {}, 1_000, "add 5% to budgets in x.yaml and run it again."),
        (TOP, {}, 256, PLAN.format(256, "snapkv:budget=10%")),  # 5 % cannot hold the window
        (LOST_LOW, {}, 1_000, "add 30% to budgets in x.yaml and run it again."),
        (LOST_LOW, {"budgets": ("30%", "50%")}, 1_000, PLAN.format(1_000, "snapkv:budget=50%")),
        (NONE, {}, 1_000, "add 75% to budgets in x.yaml and run it again."),
        (TOP, {"tolerance": 2.0}, 1_000, "add about 92 samples to x.yaml and run it again."),
        (TOP, {"budgets": ("10%", "50%", "90%")}, 1_000, ""),  # some results are to come
        ({}, {}, 1_000, ""),  # the full cache answers nothing
        (TOP, {"read_once": True}, 1_000, ""),
    ],
)
def test_the_next_step_follows_from_the_decision(right, changes, tokens, step):
    samples, results = made(120, right)
    new = changes.get("budgets", STUDY.budgets)
    results = [
        replace(each, prompt_tokens=tokens, budget=each.budget and new[each.budget == "50%"])
        for each in results
    ]
    found = next_of_samples(Reading(replace(STUDY, **changes), samples, results), "x.yaml")
    assert found.startswith(step)
    assert bool(found) == bool(step)


def test_where_any_of_several_answers_would_do_the_reader_is_told_of_the_other_metric():
    samples, results = made(40, everybody(40))
    several = [replace(each, answers=("nine", "9 am")) for each in samples]
    results = [replace(each, text="At nine.") for each in results]
    caution = "Of 40 samples the full cache gives some of the expected answers, and the metric"
    for study, own, is_said in (
        (STUDY, several, True),
        (STUDY, samples, False),
        (replace(STUDY, metric="string_match_part"), several, False),
        (STUDY, [replace(each, metric="string_match") for each in several], False),
    ):
        cautions = Reading(study, own, results).decision.cautions
        assert any(each.startswith(caution) for each in cautions) == is_said


def test_what_is_not_measured_is_not_told_as_none():
    samples, results = made(40, everybody(40))
    for some in ([], results[:1], [each for each in results if each.budget != "50%"]):
        decision = Reading(STUDY, samples, some).decision
        assert {each.outcome for each in decision.methods} == {"unmeasured"}
        wait = "Cannot tell yet: a decision needs two samples with all methods and budgets done."
        assert decision.sentence == (wait if some else "There is no result yet.")
        assert "0 of 40 samples count so far" in decision.cautions[-1]


def test_samples_count_in_their_order_up_to_the_first_that_is_not_done():
    samples, results = made(120, everybody(120))
    done = {sample.id for sample in samples[:100]} | {samples[110].id}
    decision = Reading(STUDY, samples, [r for r in results if r.sample in done]).decision
    assert decision.n == 100
    assert decision.sentence.count("100 samples") == 1
    assert decision.cautions == (
        "95 results are not there yet; resume the run if it has stopped. 100 of 120 samples count "
        "so far: in the run's random order, those before the first unfinished one.",
    )


def test_what_is_added_to_a_text_that_counted_is_in_tables_only():
    samples, results = made(90, everybody(90))
    samples[-1] = replace(samples[-1], source="s")
    samples[0] = replace(samples[0], source="s")
    decision = Reading(STUDY, samples, results).decision
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
    assert Reading(STUDY, renamed, theirs).decision == Reading(STUDY, samples, results).decision


def test_a_study_that_is_read_once_says_nothing_before_its_end():
    samples, results = made(80, everybody(80) | {Point("snapkv+critical", "50%"): set(range(50))})
    once = replace(STUDY, read_once=True)
    before = Reading(once, samples, results[:-1]).decision
    assert before.recommended is None
    assert before.sentence == (
        "No decision yet: this run is decided once, when all its 80 samples are done."
    )
    assert Reading(STUDY, samples, results).decision.recommended is None  # it takes 84
    assert Reading(once, samples, results).decision.recommended is not None


def test_methods_and_tolerances_of_before_are_not_forgotten():
    earlier = replace(STUDY, variants=("snapkv", "knorm"), tolerance=2.0)
    now = STUDY.after(earlier)
    assert (now.earlier_variants, now.earlier_tolerances) == (("knorm",), (2.0,))
    assert STUDY.after(now).after(STUDY) == now.after(STUDY)
    assert earlier.after(now).earlier_tolerances == (5.0,)
    right = everybody(85) | {Point("snapkv+critical", "50%"): set(range(50))}
    samples, results = made(85, right)
    assert Reading(STUDY, samples, results).decision.recommended is not None
    decision = Reading(now, samples, results).decision
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
    told = Reading(STUDY, samples, refused).decision.cautions
    assert "8 results failed and fail each time: Raise the budget." in told
    assert "2 results failed and may pass if the run is resumed: Memory ran out." in told
    wrong = {FULL_POINT: set(range(60))}
    missed = [
        replace(r, **failed, for_good=r.budget == "10%") if r.budget == "10%" else r
        for r in made(60, wrong)[1]
    ]
    decision = Reading(STUDY, made(60, wrong)[0], missed).decision
    assert [each.outcome for each in decision.methods] == ["loses", "loses"]
    refused_at = decision.methods[0].points["10%"]
    assert refused_at.loss is None
    assert sentences.next_budget("SnapKV", "10%", refused_at, 60) == (
        "At 10 % SnapKV has no known score."
    )


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
    decision = Reading(STUDY, samples, results).decision
    assert {method.outcome for method in decision.methods} == {"undecided"}
    assert decision.cautions[0].startswith(
        "800 of 2,000 answers stopped at the limit of 64 new tokens. Their scores are unknown"
    )
    assert "may lose up to 5" in decision.sentence
    assert "lost nothing so far." in decision.sentence
    full = [replace(r, score=None, stopped="length") for r in results if r.budget is None]
    rest = [r for r in results if r.budget is not None]
    assert Reading(STUDY, samples, [*full, *rest]).decision.sentence == (
        "The full cache's own answers all stopped at the limit of 64 new tokens."
    )


def test_lower_l1_with_better_answers_is_told_within_a_budget():
    variants = ("snapkv", "adakv", "knorm")
    samples = plain_samples(15)
    equal, level, few = samples[12:]  # of which nothing is known
    results = [
        scored(
            sample.id,
            variant,
            budget,
            float(place == 0 or sample == equal),
            figures={"head": place * (sample != level) + (100.0 if budget == "10%" else 0.0)},
        )
        for sample in samples
        for budget in STUDY.budgets
        for place, variant in enumerate(variants[: 2 if sample == few else 3])
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


def test_any_point_is_the_baseline_of_decision_pairs_and_table():
    half, everything = set(range(100)), set(range(200))
    right = everybody(200) | {Point("snapkv", b): half for b in ("10%", "50%")}
    right |= {Point("snapkv+critical", b): half for b in ("10%", "50%")}
    samples, results = made(200, right)
    against_full = Reading(STUDY, samples, results).decision
    assert {method.outcome for method in against_full.methods} == {"loses"}
    study = replace(STUDY, baseline="snapkv:budget=50%").after(STUDY)
    decision = Reading(study, samples, results).decision
    (method,) = decision.methods  # neither the full cache nor the baseline's own
    assert (method.variant, method.outcome, method.budget) == ("snapkv+critical", "keeps", "10%")
    assert "SnapKV at 50 % scores 50 of 100" in decision.sentence
    assert "baseline was changed; before it was full" in " ".join(decision.cautions)
    points = read_results(study, samples, results)
    others = {point_of(p.row): p for p in points.pairs if p.other is points.baseline}
    assert others.keys() == {*study.points()} - {Point("snapkv", "50%")}
    full = others[FULL_POINT].differences["score"]
    assert (full.higher, full.lower) == (len(everything - half), 0)
    columns = {column.key: column for column in points_table(points).columns}
    assert columns["score_full"].label == "Score minus SnapKV at 50 %'s"
    for wrong in ("snapkv", "knorm:budget=50%", "snapkv:budget=20%"):
        with pytest.raises(ConfigError, match="is no point of this run"):
            replace(STUDY, baseline=wrong, variants=("snapkv", "tova")).validate()


# --- the decision against a second implementation, its laws, and its errors by simulation ---

CUT = float("nan")
SCORES = st.sampled_from([0.0, 1.0, 1.0, 1.0, 0.5, 0.3, CUT])


@st.composite
def runs(draw, most=16, scores=SCORES):
    """Full scores, scores of some methods and budgets, and sources."""
    n, methods, budgets = (draw(st.integers(*ends)) for ends in ((2, most), (1, 3), (1, 3)))
    rare = draw(st.sampled_from([SCORES, st.just(1.0)]))
    full = draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.6, CUT]), min_size=n, max_size=n))
    row = st.lists(rare, min_size=n, max_size=n)
    table = [[draw(row) for _ in range(budgets)] for _ in range(methods)]
    return full, table, draw(st.lists(st.integers(0, n), min_size=n, max_size=n))


def own(run, step, **more):
    full, table, sources = run
    return decide(np.array(full), np.array(table), sources, step / 1000, **more)


def column(choice, name):
    return [[getattr(point, name) for point in row] for row in choice.points]


@settings(max_examples=12, deadline=None)
@given(run=runs(), step=st.integers(0, 600), mask=st.integers(0, 2**9 - 1))
@example(run=([1.0] * 16, [[[CUT] * 16, [0.0] * 16]], [*range(16)]), step=250, mask=1)
def test_it_is_what_the_second_implementation_decides(run, step, mask):
    """Points that no prompt could run, by the bits of `mask`, are not there for the second one."""
    full, table, sources = run
    size = len(table), len(table[0])
    refused = np.array([mask >> at & 1 for at in range(size[0] * size[1])], bool).reshape(size)
    found = own((full, np.where(refused[..., None], -np.inf, table), sources), step)
    table = np.where(refused[..., None], CUT, table).tolist()
    if found.n < 2:
        assert {state for row in column(found, "state") for state in row} == {"undecided"}
        return
    there = [np.flatnonzero(~row) if not row.all() else np.arange(size[1]) for row in refused]
    left = [[row[at] for at in own] for row, own in zip(table, there, strict=True)]
    states, most, least, can_show = reference.decided(full, left, sources, step)
    assert found.can_show_loss == can_show
    for method, own_points in enumerate(there):
        points = [found.points[method][at] for at in own_points]
        for point, *expected, is_out in zip(
            points,
            most[method],
            least[method],
            states[method],
            refused[method][own_points],
            strict=True,
        ):
            claims = [1.0, None, "undecided"] if is_out else expected
            assert [point.at_most, point.at_least, point.state] == claims
    for method, at in zip(*np.nonzero(refused), strict=True):
        assert found.points[method][at].state == "undecided"
        assert found.points[method][at].needed is None


@settings(max_examples=40, deadline=None)
@given(run=runs(most=40), step=st.integers(0, 999), seed=st.integers(0, 99))
def test_bounds_and_states_agree_and_neither_order_nor_names_move_them(run, step, seed):
    found = own(run, step)
    for point in (point for row in found.points for point in row):
        keeps = found.can_show_loss and point.at_most <= step / 1000
        loses = point.at_least is not None and point.at_least >= step / 1000
        assert (point.state == "keeps", point.state == "loses") == (keeps, loses)
        assert point.at_least is None or point.at_least <= point.at_most
    full, table, sources = run
    order = np.random.default_rng(seed).permutation(len(full))
    renamed = [f"{sources[at] * 7919 % 1009}-{sources[at]}" for at in order]
    again = decide(np.array(full)[order], np.array(table)[..., order], renamed, step / 1000)
    assert column(again, "state") == column(found, "state")
    assert column(again, "at_most") == column(found, "at_most")
    assert column(again, "at_least") == column(found, "at_least")


def test_a_cut_result_counts_as_the_worst_for_either_claim():
    low, known, high = losses(np.array([1.0, 1.0, CUT]), np.array([[[1.0, CUT, 0.0]]]), "abc")
    assert (low.tolist(), high.tolist()) == ([[[0.0, 0.0]]], [[[0.0, 1.0]]])
    assert known[0, 0].tolist() == pytest.approx([0.0, CUT], nan_ok=True)


def test_a_cut_result_is_named_where_more_samples_alone_would_not_help():
    """Four of five samples are right and one was cut: nothing is lost, but the bound stays."""
    right = np.ones((1, 1, 5))
    right[..., 4] = np.nan
    (point,) = decide(np.ones(5), right, [*range(5)], 0.05).points[0]
    assert (point.state, point.loss, point.needed, point.unknown) == ("undecided", 0.0, None, 1)
    assert sentences.settled_by(point, 5) == (
        " More samples alone would not help: 1 of 5 samples has a cut or failed result, counted as "
        "lost."
    )
    close = replace(point, loss=0.05, unknown=0)
    assert "too close to the tolerance" in sentences.settled_by(close, 5)


def test_samples_of_one_source_are_averaged_and_a_source_counts_once():
    low, known, high = losses(np.ones(4), np.array([[[1.0, 0.0, CUT, 1.0]]]), ["a", "a", "b", "b"])
    assert (low[0, 0].tolist(), high[0, 0].tolist()) == ([0.5, 0.0], [0.5, 0.5])
    assert known[0, 0].tolist() == [0.5, 0.0]
    assert counted([True] * 6, ["a", "a", "b", "c", "a", "d"]) == [0, 1, 2, 3, 5]
    assert counted([True, True, True, False, True], ["a", "b", "c", "c", "d"]) == [0, 1]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_the_random_order_holds_every_sample_and_keeps_a_source_together(sources):
    order = random_order(sources)
    assert sorted(order) == list(range(len(sources)))
    placed = [sources[at] for at in order]
    assert len([*groupby(placed)]) == len(set(sources))
    assert random_order([f"n{each}" for each in sources]) == order  # names decide nothing


def test_a_method_that_was_in_the_run_counts_though_it_is_gone():
    full, table = np.ones(72), np.ones((1, 1, 72))
    assert decide(full, table, range(72), 0.05).points[0][0].state == "keeps"
    more = decide(full, table, range(72), 0.05, former=6)
    assert more.points[0][0].state == "undecided"
    assert more.points[0][0].needed == fewest_sources(0.05, 7) == 109
    chain = np.array([[4.0, 3.0], [5.0, 2.0]])
    padded = np.array([*chain, [-np.inf, -np.inf]])
    assert closed(chain, 1) == pytest.approx(closed(padded)[:2])


@settings(max_examples=10, deadline=None)
@given(
    full=st.lists(st.sampled_from([1.0, 1.0, 0.0]), min_size=2, max_size=9),
    lost=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0]), min_size=9, max_size=9),
    step=st.integers(100, 400),
)
@example(full=[1.0] * 2 + [0.0] * 7, lost=[0.0] * 9, step=100)  # a loss is shown later
def test_as_many_sources_as_are_needed_decide_and_fewer_do_not(full, lost, step):
    scores = full - np.array(lost[: len(full)]) * full

    def of_more(times):
        shape = np.tile(full, times), np.tile(scores, times)[None, None]
        return decide(*shape, range(times * len(full)), step / 1000).points[0][0]

    once = of_more(1)
    if once.state == "undecided":
        assert once.needed is None or once.needed > len(full)
        times = min(-(-(once.needed or 10_000) // len(full)), 60)
        enough = once.needed is not None and times * len(full) >= once.needed
        assert (of_more(times).state != "undecided") == enough
        assert of_more(times - 1).state == "undecided"


def test_where_the_full_cache_answers_too_little_nothing_keeps():
    full = np.array([1.0] * 4 + [0.0] * 96)
    found = decide(full, np.array([[full]]), range(100), 0.05)
    assert (found.can_show_loss, found.points[0][0].state) == (False, "undecided")
    assert found.points[0][0].at_most <= 0.05  # though nothing was lost
    assert found.points[0][0].needed is None  # 4 of 100 can never lose 5 of 100


def test_what_a_number_of_samples_can_confirm():
    assert least_tolerance(40, 7) == pytest.approx(0.130, abs=5e-4)
    assert least_tolerance(40, 7, 1) == pytest.approx(0.223, abs=5e-4)
    assert least_tolerance(1, 1, 1) is None
    for tolerance, methods in ((0.05, 1), (0.02, 7), (0.1, 12)):
        n = fewest_sources(tolerance, methods)
        assert least_tolerance(n, methods) <= tolerance < least_tolerance(n - 1, methods)
    assert fewest_sources(0.0, 1) is None
    assert fewest_sources(0.97, 1) == 1


def test_a_run_of_fixed_size_is_read_once_by_the_exact_binomial():
    full, table = np.ones(60), np.ones((1, 2, 60))
    table[0, 0, :3] = 0
    one = decide(full, table, range(60), 0.05, once=True)
    # 0 of 60: 0.95 ** 60 = 0.046; 3 of 60 rule out what 59 and 60 samples of 12.4 % do not.
    assert [point.state for point in one.points[0]] == ["undecided", "keeps"]
    assert [point.at_most for point in one.points[0]] == [0.125, 0.049]
    assert {point.at_least for point in one.points[0]} == {None}
    assert decide(full, table, range(60), 0.05, once=True, former=1).points[0][1].state == (
        "undecided"
    )


def test_the_simulation_takes_the_evidence_of_the_product():
    loss = np.random.default_rng(1).choice([-1.0, 0.0, 0.3, 1.0], (2, 3, 40))
    keeps, loses = log_e_keeps(loss, 0.1), log_e_loses(loss, 0.1)
    assert evidence((1 - loss) / 0.9)[-1] == pytest.approx(keeps)
    assert evidence((1 + loss) / 1.1)[-1] == pytest.approx(loses)


@pytest.mark.parametrize("kind", KINDS)
def test_any_false_claim_at_any_look_is_rare(kind):
    assert max(errors(kind, 0.1, 60)) <= 0.1  # at most 5 % are true of endless runs


def test_as_many_samples_confirm_as_the_documents_say():
    assert samples_to_confirm(0.05, 0.0, 20) == ["69/69", "109/109", "120/120"]
    middle, most = map(int, samples_to_confirm(0.1, 0.025, 200)[0].split("/"))
    assert 50 < middle < 100
    assert middle < most < 160


@pytest.mark.parametrize(
    ("outcome", "points"),
    [
        ("keeps", [(0.04, 0.01), (0.03, 0.02)]),  # (at most, loss), the better one last
        ("loses", [(0.2, None), (0.2, 0.15), (0.3, 0.1)]),
    ],
)
def test_what_is_shown_ranks_methods_that_keep_and_the_loss_the_others(outcome, points):
    methods = [
        SimpleNamespace(
            outcome=outcome,
            budget="10%",
            points={"10%": SimpleNamespace(at_most=at_most, loss=loss)},
        )
        for at_most, loss in points
    ]
    assert sorted(methods, key=reading._rank) == methods[::-1]
