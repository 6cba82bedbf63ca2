"""Variants compared prompt by prompt, against values worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.aggregate_runs import join
from ckv_core.analysis.pairs import compare_pairs
from ckv_core.experiment.stats import difference_interval
from ckv_core.results.events import RunResult
from ckv_core.results.records import RoundingFloor
from tests.factories.runs import array, measured, on_prompt, variant


def prompt(number: int, kl: tuple[float, float], found: tuple[bool, bool, bool]) -> RunResult:
    """One prompt: KL of SnapKV and of CriticalKV; who gives the answer, the full cache first."""
    heads = array([1, 2, 3, 4])
    return on_prompt(
        number,
        variant("full", answer_found=found[0], stopped="eos"),
        variant("snapkv", measured(heads, 1, kl[0]), answer_found=found[1], stopped="eos"),
        variant("snapkv+critical", measured(heads, 1, kl[1]), answer_found=found[2], stopped="eos"),
    )


def runs(count: int) -> list[RunResult]:
    """KL differs by 100 between prompts and by about 1 within one; CriticalKV loses answers."""
    gains = np.random.default_rng(2).normal(1, 0.2, count)
    return [
        prompt(at, (100 * at + 5 + gains[at], 100 * at + 5), (True, at % 2 == 0, at == 1))
        for at in range(count)
    ]


def test_a_difference_that_every_prompt_shares_is_seen_though_the_means_overlap():
    base, _, _ = compare_pairs(join(runs(12)).variants)
    assert (base.variant.spec, base.other.spec) == ("snapkv+critical", "snapkv")
    kl = base.figures["kl"]
    assert (kl.lower, kl.higher, kl.p, kl.mean.n) == (12, 0, None, 12)
    assert kl.mean.low < kl.mean.mean < kl.mean.high < -0.8  # prompts differ by hundreds


def test_answers_are_compared_by_the_prompts_that_changed():
    base, plain, critical = compare_pairs(join(runs(12)).variants)
    answer = base.figures["answer"]
    # SnapKV has prompts 0, 2, .. 10, CriticalKV prompt 1: six lost, one gained; 2 (1 + 7) / 2^7.
    assert (answer.lower, answer.higher, answer.p) == (6, 1, pytest.approx(0.125))
    assert answer.mean == difference_interval([-1, 1, *[-1, 0] * 5])
    assert [pair.other.spec for pair in (plain, critical)] == ["full", "full"]
    assert set(critical.figures) == {"answer"}  # the full cache moves nothing by definition
    assert critical.figures["answer"].p == pytest.approx(2 / 2**11)


def test_a_cut_answer_is_in_no_pair():
    several = runs(3)
    cut = several[0].variants[2]
    several[0].variants[2] = replace(cut, stopped="length")
    base, *_ = compare_pairs(join(several).variants)
    assert (base.figures["answer"].mean.n, base.figures["answer"].lower) == (2, 1)


def test_a_difference_below_the_rounding_floor_is_neither_lower_nor_higher():
    several = runs(12)  # KL differs by about 1
    for at, run in enumerate(several):
        kl = (0.01, 50.0)[at % 3 == 0]
        run.floor = RoundingFloor(layer_hidden_l1=np.zeros(2, np.float32), kl=kl)
    base, *_ = compare_pairs(join(several).variants)
    kl, final = base.figures["kl"], base.figures["final"]
    assert (kl.lower, kl.higher, kl.level) == (8, 0, 4)
    assert kl.level_note == ", below the rounding floor on 4"
    assert (final.lower, final.higher, final.level) == (0, 0, 12)  # they are equal
    assert final.level_note == ", below the rounding floor"
    assert base.figures["answer"].level == base.figures["head"].level == 0


def test_without_the_base_there_is_no_pair_with_one():
    alone = [on_prompt(at, *run.variants[2:]) for at, run in enumerate(runs(2))]
    assert compare_pairs(join(alone).variants) == []
