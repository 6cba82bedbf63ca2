"""The decision against a second implementation, its laws, and its errors by simulation."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.decision import KINDS, errors, evidence, samples_to_confirm
from ckv_core.experiment.decide import (
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
from tests.reference import decision as reference

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
@given(run=runs(), step=st.integers(0, 600))
def test_it_is_what_the_second_implementation_decides(run, step):
    found = own(run, step)
    if found.n < 2:
        assert {state for row in column(found, "state") for state in row} == {"undecided"}
        return
    states, most, least, can_show = reference.decided(*run, step)
    assert found.can_show_loss == can_show
    assert column(found, "at_most") == most
    assert column(found, "at_least") == least
    assert column(found, "state") == states


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
