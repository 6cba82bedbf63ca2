"""Means over what is known; the chain per head, and its tightness."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ckv_core.records.chain import (
    ChainCheck,
    check_chain,
    mean_of_known,
    tightness_of,
)
from ckv_core.records.records import VariantResult
from tests.factories.runs import measured, variant

INF, NAN = math.inf, math.nan
LAYERS, KV_HEADS, GROUP_SIZE = 3, 2, 3
SHAPE = (LAYERS, KV_HEADS * GROUP_SIZE)
STEPS = ("theta", "theta_hat", "theta_relaxed")
sizes = arrays(np.float32, SHAPE, elements=st.floats(0, 1e4, width=32))
masses = arrays(np.float32, SHAPE, elements=st.floats(0, 1, width=32))


@pytest.mark.parametrize(
    ("values", "mean"),
    [([1, 3], 2), ([NAN, 3], 3), ([1, INF], INF), ([INF, -INF], NAN), ([], None), ([NAN], None)],
)
def test_what_is_nan_does_not_count_and_both_infinities_are_nan_without_a_warning(values, mean):
    found = mean_of_known(np.array(values, np.float32))
    assert found is mean is None or found == pytest.approx(mean, nan_ok=True)


def variant_of(l1: np.ndarray, sigma: np.ndarray, *bounds: np.ndarray) -> VariantResult:
    """Bounds of every head; the last layer is not evicted."""
    named = dict(zip((*STEPS, "sigma_stage1"), (*bounds, sigma), strict=True))
    every = {"head_l1": l1, "value_mass": l1 + 1, **named}
    for name, values in every.items():
        every[name] = values.astype(np.float32)
        every[name][-1] = np.nan
    moved = every.pop("head_l1")
    return variant("snapkv", measured(moved, 0.0), analysis=every)


@given(sizes, masses, sizes)
def test_the_tightness_is_of_each_head_with_a_bound(l1, sigma, extra):
    found = variant_of(l1, sigma, l1 + extra, l1 + 2 * extra, l1 + 3 * extra)
    moved, bound, tight = found.perturbation.head_l1, found.analysis["theta"], tightness_of(found)
    is_bound = bound > 0
    assert np.isnan(tight[~is_bound]).all()
    np.testing.assert_array_equal(tight[is_bound], moved[is_bound] / bound[is_bound])


def test_rounding_of_a_millionth_of_c_is_not_a_broken_chain():
    l1, sigma = np.full(SHAPE, 9), np.full(SHAPE, 0.9)  # C is 10
    theta = np.tile([9 - 5e-6, 9 - 5e-5], 3) * np.ones(SHAPE)
    found = variant_of(l1, sigma, theta, l1 * 2, l1 * 3)
    assert check_chain(found) == ChainCheck(heads=12, covered=12, violations=6)
    assert check_chain(replace(found, perturbation=None)) is None
