"""Laws of the ablation over several prompts."""

import json
from dataclasses import replace

import pytest

from ckv_core.analysis.ablation import ablation
from ckv_core.analysis.ablation_means import ablation_means
from ckv_core.analysis.aggregate_runs import join
from ckv_core.analysis.intervals import mean_interval
from ckv_core.analysis.means_json import means_json
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult
from tests.factories.runs import array, measured, on_prompt, variant

ABLATION_STEPS = ablation("snapkv:budget=64")


def ablation_steps_of(
    count: int, at: int = 0, base: str = "snapkv:budget=64"
) -> list[VariantResult]:
    """The first steps; of step i so many heads are below the base, and the final L1 is 10 - i."""
    heads = [array([2 + at, 2 + at, 2 + at, 2 + at])]
    heads += [array([1 if head < i else 9 for head in range(4)]) for i in range(1, count)]
    specs = [step.spec for step in ablation(base)]
    return [variant(specs[i], measured(values, 10 - i - at, 1)) for i, values in enumerate(heads)]


def means(*results: RunResult):
    return ablation_means(join(results).variants)


def test_each_step_is_read_against_its_own_prompts_base_and_then_averaged():
    found = means(*(on_prompt(at, *ablation_steps_of(4, at)) for at in range(5)))
    assert [each.step for each in found] == list(ABLATION_STEPS[:4])
    assert {each.n for each in found} == {5}
    base, second = found[:2]
    assert base.better_heads is None
    assert (base.head_of_base.mean, base.final_of_base.mean) == (1, 1)
    assert second.better_heads.mean == 0.25
    ratios = [(9 - at) / (10 - at) for at in range(5)]
    assert second.final_of_base == mean_interval(ratios)
    assert second.head_of_base.mean == pytest.approx(sum(7 / (2 + at) for at in range(5)) / 5)
    assert second.final_hidden_l1.mean == 7


def test_a_ablation_may_lie_in_several_runs_and_a_step_says_its_own_n():
    whole = ablation_steps_of(5)
    found = means(
        on_prompt(0, *ablation_steps_of(4)), on_prompt(1, *whole[:2]), on_prompt(1, *whole[2:])
    )
    assert [(each.step.label, each.n) for each in found] == [
        *((step.label, 2) for step in ABLATION_STEPS[:4]),
        (ABLATION_STEPS[4].label, 1),
    ]
    assert means(on_prompt(0, *ablation_steps_of(3)), on_prompt(1, *ablation_steps_of(3))) == []


def test_of_two_ablations_that_of_more_prompts_counts():
    other = "adakv:budget=64"
    found = means(
        on_prompt(0, *ablation_steps_of(4)),
        on_prompt(1, *ablation_steps_of(4, base=other)),
        on_prompt(2, *ablation_steps_of(4, base=other)),
        on_prompt(3, *ablation_steps_of(4, base=other), variant("snapkv:budget=64")),
    )
    assert found[0].step.spec == other
    assert {each.n for each in found} == {3}


def test_a_prompt_whose_base_is_not_known_has_no_part():
    base, *others = ablation_steps_of(4)
    nan = array([float("nan")] * 4)
    unknown = replace(base, perturbation=measured(nan, 1, 1))
    found = means(
        on_prompt(0, unknown, *others), on_prompt(1, base, *others), on_prompt(2, unknown, *others)
    )
    assert [(each.step.label, each.n) for each in found] == [
        (r.label, 1) for r in ABLATION_STEPS[:4]
    ]
    assert means(on_prompt(0, unknown, *others)) == []


def test_the_file_of_means_has_the_steps():
    results = [on_prompt(at, *ablation_steps_of(4, at)) for at in range(2)]
    base, second, *_ = json.loads(json.dumps(means_json(results), allow_nan=False))["ladder"]
    assert base["better_heads"] is None
    assert (second["spec"], second["label"], second["change"], second["n"]) == (
        ABLATION_STEPS[1].spec,
        ABLATION_STEPS[1].label,
        ABLATION_STEPS[1].change,
        2,
    )
    assert second["better_heads"] == {"mean": 0.25, "low": None, "high": None, "n": 2}
    assert second["final_hidden_l1"]["mean"] == 8.5
    assert means_json([on_prompt(0, *ablation_steps_of(3))])["ladder"] == []
