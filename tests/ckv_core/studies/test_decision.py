"""Intervals cover, and a study recommends only what its samples can carry."""

import random
from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, spearmanr

from ckv_core.studies.decision import decide, halves
from ckv_core.studies.intervals import (
    Z_ONE_SIDED,
    Z_TWO_SIDED,
    difference_ends,
    holm,
    needed_without_loss,
    score_ends,
    tango_ends,
    wilson_ends,
)
from ckv_core.studies.reading import FULL_POINT, _rank_correlation, read_results
from ckv_core.studies.records import Point, Sample, SampleResult, Study
from tests.factories.scored import plain_samples, scored

STUDY = Study(
    name="made up",
    data={"file": "x"},
    variants=("snapkv", "snapkv+critical"),
    budgets=("10%", "50%"),
)


@given(n=st.integers(1, 300), data=st.data())
def test_wilson_is_scipys(n, data):
    count = data.draw(st.integers(0, n))
    known = binomtest(count, n).proportion_ci(0.95, method="wilson")
    assert wilson_ends(count / n, n) == pytest.approx((known.low, known.high), abs=1e-9)


@given(n=st.integers(1, 200), data=st.data())
def test_tangos_ends_are_where_his_statistic_is_z(n, data):
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    low, high = tango_ends(gained, lost, n)
    assert -1 <= low <= (gained - lost) / n <= high <= 1
    other_low, other_high = tango_ends(lost, gained, n)
    assert (low, high) == pytest.approx((-other_high, -other_low), abs=1e-7)
    for end in (low, high):
        if abs(end) < 0.999:
            assert abs(score_statistic(gained, lost, n, end)) == pytest.approx(
                Z_TWO_SIDED, abs=1e-4
            )


def score_statistic(gained: int, lost: int, n: int, delta: float) -> float:
    """With the nuisance share found by maximising the likelihood, not by the closed form."""
    low, high = max(0.0, -delta), (1 - delta) / 2
    best = minimize_scalar(
        lambda q: -log_likelihood(gained, lost, n, delta, q),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-12},
    ).x
    return (gained - lost - n * delta) / sqrt(n * (2 * best + delta * (1 - delta)))


def log_likelihood(gained: int, lost: int, n: int, delta: float, q: float) -> float:
    pairs = ((gained, q + delta), (lost, q), (n - gained - lost, 1 - 2 * q - delta))
    return sum(count * log(max(share, 1e-300)) for count, share in pairs if count)


@pytest.mark.parametrize("n", [5, 20, 60])
def test_nine_in_ten_intervals_hold_the_truth_even_of_few_samples(n):
    rng = random.Random(n)
    for p_gain, p_loss in ((0.0, 0.1), (0.1, 0.1), (0.05, 0.4)):
        hits = 0
        for _ in range(200):
            drawn = [
                (roll < p_gain) - (p_gain <= roll < p_gain + p_loss)
                for roll in (rng.random() for _ in range(n))
            ]
            low, high = difference_ends(drawn)
            hits += low <= p_gain - p_loss <= high
        assert hits >= 180


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
def test_an_interval_of_differences_holds_their_mean_and_is_never_a_point(values):
    low, high = difference_ends(values)
    mean = sum(values) / len(values)
    assert -1 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert high - low > 0


def test_samples_that_all_lose_alike_are_no_narrower_than_those_that_lose_nothing():
    low, high = difference_ends([-0.25] * 20)
    none_low, none_high = difference_ends([0.0] * 20)
    assert high - low >= none_high - none_low - 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_an_interval_of_scores_holds_their_mean(values):
    low, high = score_ends(values)
    mean = sum(values) / len(values)
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1


@given(n=st.integers(1, 60))
def test_an_interval_at_the_edge_begins_there(n):
    assert score_ends([0.0] * n)[0] == 0
    assert score_ends([1.0] * n)[1] == 1


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_as_many_samples_as_are_said_to_be_needed_are_just_enough():
    n = needed_without_loss(0.02)
    assert difference_ends([0.0] * n, Z_ONE_SIDED)[0] >= -0.02
    assert difference_ends([0.0] * (n - 1), Z_ONE_SIDED)[0] < -0.02


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


def test_a_method_that_loses_nothing_on_many_samples_is_recommended():
    all_of = set(range(300))
    samples, results = made(
        300, {FULL_POINT: all_of, Point("snapkv", "10%"): all_of, Point("snapkv", "50%"): all_of}
    )
    decision = decide(STUDY, samples, results)
    assert decision.recommended is not None
    assert (decision.recommended.variant, decision.recommended.budget) == ("snapkv", "10%")
    assert decision.sentence.startswith("snapkv at 10% keeps the score within 2 points")
    assert [each.outcome for each in decision.methods] == ["kept", "none"]
    assert not decision.cautions


def test_the_same_on_few_samples_is_not_claimed():
    all_of = set(range(40))
    samples, results = made(40, {FULL_POINT: all_of, Point("snapkv", "10%"): all_of})
    decision = decide(STUDY, samples, results)
    assert decision.recommended is None
    assert decision.sentence.startswith("Undecided: the smallest budget that looks within 2 points")
    assert "266" in decision.cautions[0]
    wide = replace(STUDY, tolerance=15.0)
    found = decide(wide, samples, results).recommended
    assert found is not None
    assert found.budget == "10%"


def test_where_the_full_cache_answers_nothing_no_method_is_said_to_keep_it():
    decision = decide(STUDY, *made(300, {}))
    assert decision.recommended is None
    assert {each.outcome for each in decision.methods} == {"undecided"}
    assert "the full cache itself answers nothing" in decision.sentence


@pytest.mark.slow
def test_a_lossy_method_is_hardly_ever_recommended():
    rng = random.Random(1)
    wrong = 0
    for _ in range(24):
        n = 300
        lossy = {at for at in range(n) if rng.random() > 0.04}
        samples, results = made(n, {FULL_POINT: set(range(n)), Point("snapkv", "10%"): lossy})
        wrong += decide(STUDY, samples, results).recommended is not None
    assert wrong <= 2


def test_halves_split_every_sample_once_whatever_their_order():
    samples = plain_samples(31)
    first, second = halves(samples)
    assert {len(first), len(second)} == {15, 16}
    assert {s.id for s in first} | {s.id for s in second} == {s.id for s in samples}
    assert {s.id for s in halves(samples[::-1])[0]} == {s.id for s in first}


def test_samples_of_one_source_count_once_and_stay_together():
    samples = [replace(s, source=f"t{at // 4}") for at, s in enumerate(plain_samples(8))]
    results = [scored(s.id, "full", None, float(at < 4)) for at, s in enumerate(samples)]
    row = read_results(STUDY, samples, results).rows[0]
    assert (row.n, row.score) == (2, 0.5)
    first, second = halves(samples)
    assert not {s.source for s in first} & {s.source for s in second}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12).filter(
        lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    )
)
def test_the_rank_correlation_is_spearmans(pairs):
    left, right = np.array(pairs, float).T
    wanted = spearmanr(left, right).statistic
    assert _rank_correlation(left, right) == pytest.approx(wanted, abs=1e-9)


def test_lower_l1_with_better_answers_is_told_within_a_budget():
    variants = ("snapkv", "adakv", "knorm")
    study = replace(STUDY, variants=variants)
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
    found = read_results(study, samples, results).l1_answers
    assert found is not None
    assert found.n == 12
    assert found.mean == pytest.approx(spearmanr([2, 1, 0], [1, 0, 0]).statistic)


def test_pairs_are_told_with_mcnemar_and_holm():
    n = 20
    samples, results = made(
        n,
        {
            FULL_POINT: set(range(n)),
            Point("snapkv", "50%"): set(range(n)),
            Point("snapkv+critical", "50%"): set(range(10)),
        },
    )
    pairs = {(p.point, p.other): p for p in read_results(STUDY, samples, results).pairs}
    found = pairs[Point("snapkv+critical", "50%"), Point("snapkv", "50%")]
    assert (found.mean, found.lower, found.higher) == (-0.5, 10, 0)
    assert found.p == pytest.approx(2 * 0.5**10)
    assert found.holm_p is not None
    assert found.holm_p > found.p
    assert pairs[Point("snapkv", "50%"), FULL_POINT].p == 1.0
