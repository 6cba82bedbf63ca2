"""Laws of means and intervals over prompts."""

import numpy as np
import pytest

from benchmarks.coverage import mean_coverage, share_coverage
from ckv_core.analysis import intervals
from ckv_core.analysis.intervals import (
    GOOD_PROMPTS,
    MIN_PROMPTS,
    interval_note,
    mean_ends,
    mean_interval,
    share_interval,
)
from ckv_core.errors import ConfigError


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


def test_rows_that_are_drawn_together_have_the_ends_that_each_has_alone():
    rows = np.random.default_rng(5).normal(10, 3, (7, MIN_PROMPTS))
    rows[2] = 4.0  # nothing varies
    low, high = mean_ends(rows)
    for at, row in enumerate(rows):
        alone = mean_interval(row.tolist())
        assert (low[at], high[at]) == pytest.approx((alone.low, alone.high), rel=1e-3)
    assert (low[2], high[2]) == (4, 4)


def test_intervals_are_drawn_only_where_they_are_read(monkeypatch):
    drawn = []
    monkeypatch.setattr(intervals, "mean_interval", lambda values: drawn.append(values) or values)
    found = intervals.Intervals({"a": [1.0], "b": [2.0, 3.0]})
    assert ("a" in found, "c" in found, list(found)) == (True, False, ["a", "b"])
    assert (found.prompts("b"), found.get("c")) == (2, None)
    assert drawn == []
    assert found["b"] is found["b"]
    assert drawn == [[2.0, 3.0]]
