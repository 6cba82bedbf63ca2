"""Laws of means and intervals over prompts."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.coverage import mean_coverage, share_coverage
from ckv_core.analysis import intervals
from ckv_core.analysis.aggregate import aggregate
from ckv_core.analysis.intervals import (
    GOOD_PROMPTS,
    MIN_PROMPTS,
    interval_note,
    mean_interval,
    share_interval,
)
from ckv_core.errors import ConfigError
from ckv_core.results.chain import COVERED, ChainCheck, check_chain
from ckv_core.results.events import RunResult
from tests.factories.runs import array, measured, variant


def test_too_few_prompts_get_a_mean_and_a_sentence_but_no_interval():
    found = mean_interval([1.0, 2.0, 6.0])
    assert (found.mean, found.low, found.high, found.n) == (3.0, None, None, 3)
    assert f"at least {MIN_PROMPTS}" in str(interval_note(3))
    with pytest.raises(ConfigError, match="at least one prompt"):
        mean_interval([])


def test_the_interval_holds_the_mean_is_the_same_twice_and_narrows_with_n():
    sample = np.random.default_rng(3).normal(10, 2, 120).tolist()
    few, many = mean_interval(sample[:12]), mean_interval(sample)
    assert few == mean_interval(sample[:12])
    assert few.low < few.mean < few.high
    assert many.high - many.low < few.high - few.low


def test_intervals_cover_the_truth_as_often_as_the_notes_say():
    assert 0.90 <= mean_coverage("normal", GOOD_PROMPTS, 300) <= 0.97
    assert 0.85 <= mean_coverage("normal", MIN_PROMPTS, 300) <= 0.95
    assert mean_coverage("normal", 5, 300) < 0.9  # why there is none below
    for rate in (0.03, 0.5):
        assert share_coverage(rate, 30, 1000) > 0.94  # exact: 95 % or more but for the draws


def test_few_prompts_are_told_from_too_few():
    assert f"fewer than {GOOD_PROMPTS} prompts are too narrow" in str(interval_note(MIN_PROMPTS))
    assert "too narrow" in str(interval_note(GOOD_PROMPTS, GOOD_PROMPTS - 1))
    assert "where n is less" in str(interval_note(GOOD_PROMPTS, MIN_PROMPTS - 1))
    assert interval_note(GOOD_PROMPTS) is None


def test_equal_values_have_an_interval_of_no_width():
    found = mean_interval([2.0] * MIN_PROMPTS)
    assert (found.low, found.high) == (2.0, 2.0)


def test_a_share_of_yes_and_no_has_an_exact_interval_with_a_width_also_at_its_ends():
    none, every = share_interval([0.0] * 30), share_interval([1.0] * 30)
    assert (none.low, none.high) == (0, pytest.approx(0.116, abs=5e-4))  # not 0 to 0 %
    assert (every.low, every.high) == (pytest.approx(0.884, abs=5e-4), 1)
    assert share_interval([1.0] * 5).low is None  # of a share that could lie between
    few = share_interval([1.0, 0.0, 1.0], fewest=1)
    assert few.low < few.mean < few.high
    assert few.mean == pytest.approx(2 / 3)
    parts = np.linspace(0.2, 0.9, 12).tolist()
    assert share_interval(parts) == mean_interval(parts)
    read = intervals.Intervals({"answer": [0.0] * 30, "kl": [0.0] * 30})
    assert (read["answer"].high, read["kl"].high) == (none.high, 0)


def run(heads: list[float], base: list[float], **arrays: list[float]) -> RunResult:
    """One variant with one evictable layer of two heads and one that is not."""
    missing = [np.nan, np.nan]
    analysis = {name: array(values, missing) for name, values in arrays.items()}
    moved = measured(array(heads, missing), [1.0, 2.0], 0.5, array(base, missing))
    return RunResult(variants=[variant("snapkv+critical", moved, analysis=analysis)])


def test_a_head_wins_by_its_mean_over_the_prompts():
    (found,) = aggregate([run([1, 9], [2, 8]), run([4, 5], [2, 8])])
    assert found.head_wins is not None
    # head 0: 2.5 against 2; head 1: 7 against 8
    assert found.head_wins.wins[0].tolist() == [False, True]
    assert (found.head_wins.count, found.head_wins.heads, found.head_wins.share) == (1, 2, 0.5)
    assert found.figures["improved_heads"].mean == pytest.approx((0.5 + 0.5) / 2)
    assert found.figures["head"].mean == pytest.approx((5 + 4.5) / 2)


def test_the_chain_is_checked_only_where_sigma_is_over_a_half():
    arrays = {"theta": [2, 2], "theta_hat": [3, 1], "theta_relaxed": [4, 0], "value_mass": [5, 5]}
    low = run([1, 1], [2, 2], sigma_stage1=[0.9, 0.4], **arrays)
    (found,) = aggregate([low])
    assert found.figures["sigma_over_half"].mean == 0.5
    assert (found.violations, found.checked) == (0, 1)
    assert found.figures["tightness"].mean == 0.5
    (found,) = aggregate([low, run([1, 1], [2, 2], sigma_stage1=[0.9, 0.6], **arrays)])
    assert found.figures["sigma_over_half"].mean == 0.75
    assert (found.violations, found.checked) == (1, 3)


def test_means_obey_the_chain_as_they_are_of_covered_heads_alone():
    good = {"theta": [2, 3], "theta_hat": [3, 1e9], "theta_relaxed": [4, 0], "value_mass": [5, 5]}
    runs = [
        run([1 + at, 9], [2, 2], sigma_stage1=[0.6, 0.5], **good | {"theta": [2 + at, 3]})
        for at in (0, 0.5)
    ]
    none = run([7, 7], [2, 2], sigma_stage1=[0.5, 0.1], **good)
    (found,) = aggregate([*runs, none])
    chain = [found.figures[key] for key in COVERED]
    assert [each.mean for each in chain] == [1.25, 2.25, 3, 4]
    assert {each.n for each in chain} == {2}
    assert (found.checked, found.bounded) == (2, 6)
    told = "covered_l1, theta, theta_hat, theta_relaxed (of heads with sigma over 0.5)"
    assert [*found.notes] == [f"{told}: known in 2 of 3 prompts."]
    (found,) = aggregate([none])
    assert not set(COVERED) & set(found.figures)
    assert (found.checked, found.bounded) == (0, 2)


def test_rounding_of_a_millionth_of_c_is_not_a_broken_chain():
    arrays = {"theta_hat": [3, 3], "theta_relaxed": [4, 4], "value_mass": [10, 10]}
    theta = [1 - 5e-6, 1 - 5e-5]
    (variant,) = run([1, 1], [2, 2], sigma_stage1=[0.9, 0.9], theta=theta, **arrays).variants
    assert check_chain(variant) == ChainCheck(heads=2, covered=2, violations=1)
    assert check_chain(replace(variant, perturbation=None)) is None


def test_a_prompt_whose_figure_is_nan_counts_as_one_where_it_is_not_known():
    runs = [run([at, at], [2, 2]) for at in range(1, 12)]
    measured = runs[0].variants[0].perturbation
    assert measured is not None
    broken = replace(measured, kl=float("nan"), head_l1=measured.head_l1 * np.float32(np.nan))
    runs[0].variants[0] = replace(runs[0].variants[0], perturbation=broken)
    (found,) = aggregate(runs)
    assert (found.figures["kl"].mean, found.figures["kl"].low, found.figures["kl"].n) == (
        0.5,
    ) * 2 + (10,)
    assert found.figures["head"].low is not None
    assert 2 < found.figures["head"].low < found.figures["head"].mean == 6.5
    assert "kl: known in 10 of 11 prompts." in found.notes


def test_oracle_sigma_over_a_half_is_averaged_over_the_prompts():
    runs = [run([1, 1], [2, 2], sigma_oracle=mass) for mass in ([0.6, 0.5], [0.6, 0.7])]
    (found,) = aggregate(runs)
    assert found.figures["oracle_over_half"].mean == 0.75


def with_alpha(alpha: float | None, *, critical: bool = False) -> RunResult:
    found = run([1, 1], [2, 2], sigma_stage1=[0.9, 0.4])
    (plain,) = found.variants
    known = {} if alpha is None else {"stage1_alpha": np.array([alpha], np.float32)}
    analysis = {**plain.analysis, **known}
    found.variants[0] = replace(plain, critical=critical, analysis=analysis)
    return found


def test_runs_whose_plain_variants_took_different_alphas_say_so():
    (mixed,) = aggregate([with_alpha(1.0), with_alpha(0.1)])
    assert "differ (0.1, 1)" in str(mixed.alpha_note)
    assert mixed.alpha_note in mixed.notes
    (older,) = aggregate([with_alpha(0.25), with_alpha(None)])
    assert "(0.25, not recorded)" in str(older.alpha_note)
    (unknown,) = aggregate([with_alpha(None)] * 2)
    assert "alpha of stage 1 is not recorded" in str(unknown.alpha_note)
    for alike in ([with_alpha(0.1)] * 2, [with_alpha(None)], [run([1, 1], [2, 2])] * 2):
        assert aggregate(alike)[0].alpha_note is None
    # The SPEC of CriticalKV names its alpha; earlier versions did not record it besides.
    assert aggregate([with_alpha(a, critical=True) for a in (None, 0.5)])[0].alpha_note is None


def test_runs_of_different_variants_are_not_averaged():
    other = run([1, 1], [2, 2])
    other.variants[0] = replace(other.variants[0], spec="adakv+critical")
    with pytest.raises(ConfigError, match="no variant in common"):
        aggregate([run([1, 1], [2, 2]), other])
    with pytest.raises(ConfigError, match="nothing to average"):
        aggregate([])


def test_intervals_are_drawn_only_where_they_are_read(monkeypatch):
    drawn = []
    monkeypatch.setattr(intervals, "mean_interval", lambda values: drawn.append(values) or values)
    found = intervals.Intervals({"a": [1.0], "b": [2.0, 3.0]})
    assert ("a" in found, "c" in found, list(found), found.prompts("b")) == (
        True,
        False,
        ["a", "b"],
        2,
    )
    assert found.get("c") is None
    assert drawn == []
    assert found["b"] is found["b"]
    assert drawn == [[2.0, 3.0]]
