"""Intervals against scipy, against likelihoods found by search, and by how often they cover."""

from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, binomtest, spearmanr, ttest_1samp

from benchmarks.coverage import CASES, coverage
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import (
    GOOD_PROMPTS,
    MIN_PROMPTS,
    Match,
    Z,
    difference_interval,
    holm,
    interval_note,
    matching_budget,
    matching_range,
    mcnemar,
    mean_interval,
    paired,
    rank_correlation,
    score_interval,
)

DIFFERENCES = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40)


@given(n=st.integers(1, 300), data=st.data())
def test_a_share_has_wilsons_interval(n, data):
    count = data.draw(st.integers(0, n))
    known = binomtest(count, n).proportion_ci(0.95, method="wilson")
    found = score_interval([1.0] * count + [0.0] * (n - count))
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9)


@given(n=st.integers(1, 200), data=st.data())
def test_tangos_ends_are_where_his_statistic_is_z(n, data):
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    changes = [1.0] * gained + [-1.0] * lost + [0.0] * (n - gained - lost)
    found = difference_interval(changes)
    assert -1 <= found.low <= (gained - lost) / n <= found.high <= 1
    other = difference_interval([-each for each in changes])
    assert (found.low, found.high) == pytest.approx((-other.high, -other.low), abs=1e-7)
    for end in (found.low, found.high):
        if abs(end) < 0.999:
            assert abs(score_statistic(gained, lost, n, end)) == pytest.approx(Z, abs=1e-4)


def score_statistic(gained, lost, n, delta):
    """With the nuisance share found by maximising the likelihood, not by the closed form."""
    low, high = max(0.0, -delta), (1 - delta) / 2
    best = minimize_scalar(
        lambda q: -log_likelihood(gained, lost, n, delta, q),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-12},
    ).x
    return (gained - lost - n * delta) / sqrt(n * (2 * best + delta * (1 - delta)))


def log_likelihood(gained, lost, n, delta, q):
    pairs = ((gained, q + delta), (lost, q), (n - gained - lost, 1 - 2 * q - delta))
    return sum(count * log(max(share, 1e-300)) for count, share in pairs if count)


@given(DIFFERENCES)
@example([1 / 3] * 3)
@example([0.1] * 12)
def test_no_interval_is_a_point_and_all_hold_their_mean_in_any_order(values):
    for rule, taken in (
        (difference_interval, values),
        (score_interval, list(map(abs, values))),
        (mean_interval, values * MIN_PROMPTS),
    ):
        found = rule(taken)
        if rule is mean_interval and len(set(values)) == 1:
            assert (found.low, found.high) == (None, None)  # nothing is known of how they vary
            continue
        assert found.low < found.high
        assert found.low <= found.mean <= found.high
        assert rule(sorted(taken)) == rule(taken) == rule(np.array(taken))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_scores_between_0_and_1_count_for_at_least_as_much_as_yes_and_no(values):
    found, n = score_interval(values), len(values)
    half = Z * sqrt(found.mean * (1 - found.mean) / n + Z**2 / (4 * n * n)) / (1 + Z**2 / n)
    assert found.high - found.low <= 2 * half + 1e-9


@given(st.lists(st.floats(-1e6, 1e6), min_size=MIN_PROMPTS, max_size=30, unique=True))
def test_a_mean_without_bounds_has_students_interval(values):
    found = mean_interval(values)
    known = ttest_1samp(values, 0).confidence_interval(0.95)
    scale = max(map(abs, values))
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-9 * scale)


def test_too_few_prompts_get_a_mean_and_a_sentence_but_no_interval():
    found = mean_interval([1.0, 2.0, 6.0])
    assert (found.mean, found.low, found.high, found.n) == (3.0, None, None, 3)
    assert f"at least {MIN_PROMPTS}" in str(interval_note(3))
    with pytest.raises(ConfigError, match="at least one prompt"):
        mean_interval([])
    assert f"fewer than {GOOD_PROMPTS} prompts" in str(interval_note(MIN_PROMPTS))
    assert "narrow" in str(interval_note(GOOD_PROMPTS, GOOD_PROMPTS - 1))
    assert "where n is less" in str(interval_note(GOOD_PROMPTS, MIN_PROMPTS - 1))
    assert interval_note(GOOD_PROMPTS) is None


@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_truth_as_often_as_the_documents_say(case):
    least = {"exponential": 0.85, "lognormal, sigma 1": 0.78}.get(case, 0.92)
    assert all(coverage(case, n, 400) >= least for n in (10, 20, 40))


def test_pairs_count_who_changed_and_by_how_much():
    own, other = {1: 0.0, 2: 1.0, 3: 0.0, 4: 1.0}, {1: 1.0, 2: 1.0, 3: 1.0, 9: 0.0}
    found = paired(own, other, is_share=True, is_yes_no=True)
    assert (found.mean.mean, found.mean.n) == (pytest.approx(-2 / 3), 3)
    assert (found.lower, found.higher, found.level, found.p) == (2, 0, 0, 0.5)
    assert found.mean == difference_interval([-1.0, 0.0, -1.0])
    level = paired(own, other, is_share=False, floors=({1: 2.0}, {2: 0.0}))
    assert (level.lower, level.level, level.mean.low, level.p) == (1, 2, None, None)
    assert paired(own, {9: 1.0}, is_share=True) is None
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1
    assert mcnemar(0, 6) == mcnemar(6, 0) == pytest.approx(2 / 2**6)
    sums = np.convolve(*(binom.pmf(np.arange(n + 1), n, 0.5) for n in (3, 7)))
    assert mcnemar(0 + 2, 3 + 5) == pytest.approx(2 * sums[:3].sum())  # two sets, joined


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12).filter(
        lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    )
)
def test_the_rank_correlation_is_spearmans(pairs):
    left, right = np.array(pairs, float).T
    assert rank_correlation(left, right) == pytest.approx(spearmanr(left, right).statistic)


@given(data=st.data(), n=st.integers(1, 12), count=st.integers(1, 4))
def test_the_range_of_equal_scores_is_where_the_difference_holds_0(data, n, count):
    rows = st.lists(st.sampled_from([0.0, 0.4, 1.0]), min_size=n, max_size=n)
    scores = np.array([data.draw(rows) for _ in range(count)])
    target, budgets = np.array(data.draw(rows)), [5.0, 10.0, 20.0, 40.0][:count]
    points = list(zip(budgets, scores.mean(1), strict=True))
    needed = matching_budget(points, target.mean(), lower=False)
    if needed.outcome == "nothing":
        return
    low, high = matching_range(budgets, scores, target, needed)
    grid = np.unique([*np.linspace(budgets[0], budgets[-1], 101), needed.budget or budgets[0]])
    between = np.array([[np.interp(x, budgets, row) for x in grid] for row in scores.T]).T
    # Leaves out where 0 is at the very end, which rounding may move.
    held = [difference_interval((row - target).tolist()) for row in between]
    inside = [grid[at] for at, each in enumerate(held) if each.low < -1e-9 and each.high > 1e-9]
    place = {"better": -np.inf, "worse": np.inf}
    ends = [place.get(end.outcome, end.budget) for end in (low, high)]
    assert all(ends[0] <= budget <= ends[1] for budget in inside)
    assert ends[0] < ends[1] or low == high == needed
    near = [at for at, each in enumerate(held) if each.low <= 1e-9 and each.high >= -1e-9]
    if near and count > 1:
        steps = max(b - a for a, b in pairwise(grid))
        assert low.budget is None or low.budget >= grid[near[0]] - 1.01 * steps
        assert high.budget is None or high.budget <= grid[near[-1]] + 1.01 * steps


def test_a_range_is_narrower_where_scores_vary_less_than_yes_and_no():
    n, budgets = 12, [10.0, 50.0]
    target = np.full(n, 0.5)
    slight = np.array([[0.4] * n, [0.6] * n]) + np.tile([0.01, -0.01], n // 2)
    low, high = matching_range(budgets, slight, target, Match(30.0, "found"))
    # Of 12 differences of 0.1 that were all yes or no, 0.1^2 * 12 < 1.96^2 * 0.1: both ends open.
    assert 10 < low.budget < 30 < high.budget < 50
