"""Laws of means over what is known."""

import math

import numpy as np
import pytest

from ckv_core.results.chain import mean_of_known

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "mean"),
    [([1.0, 3.0], 2.0), ([NAN, 3.0], 3.0), ([1.0, INF], INF), ([], None), ([NAN], None)],
)
def test_what_is_nan_does_not_count(values, mean):
    assert mean_of_known(np.array(values, np.float32)) == mean


def test_both_infinities_are_nan_without_a_warning():
    assert math.isnan(mean_of_known(np.array([INF, -INF], np.float32)) or 0.0)


def test_an_array_that_is_not_there_has_no_mean():
    assert mean_of_known(None) is None
