"""Laws of the ablation, of what it reads from a run, and over several prompts."""

import math

import pytest

from ckv_core.errors import ConfigError
from ckv_core.experiment.ablation import ablation, ablation_of
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import MAX_VARIANTS
from ckv_core.records.records import Perturbation
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec
from tests.factories.runs import array, measured, variant

BASES = (
    "snapkv",
    "snapkv:budget=40",
    "adakv:budget=10%,pool=avg,safeguard=0.5",
    "pyramidkv:budget=4MiB,window=16,sinks=4",
    "snapkv+critical:alpha=0.5",
    "snapkv:pool=none,group=max",
    "snapkv:preset=kvpress",
)


@pytest.mark.parametrize("base", BASES)
def test_every_step_parses_all_differ_and_all_fit_a_run_with_the_full_cache(base):
    steps = ablation(base)
    request = RunRequest(context="x", variants=("full", *(step.spec for step in steps)))
    assert len(request.validate()) == len(steps) + 1 <= MAX_VARIANTS
    budget = VariantSpec.parse(base).params["budget"]
    assert {VariantSpec.parse(step.spec).params["budget"] for step in steps} == {budget}


def test_each_step_changes_one_thing():
    by_label = {step.label: VariantSpec.parse(step.spec) for step in ablation("snapkv:budget=96")}
    critical = by_label["CriticalKV"].params
    changed = {
        label: {key for key in critical if spec.params.get(key) != critical[key]}
        for label, spec in by_label.items()
        if spec.critical and label != "preset kvpress"
    }
    assert changed == {
        "stage 2, no norm": {"norm"},
        "CriticalKV": set(),
        "stage 2 pooled": {"stage2"},
        "alpha 0": {"alpha"},
        "alpha 0.5": {"alpha"},
        "alpha 1": {"alpha"},
        "group max": {"group"},
    }
    assert by_label["base, not pooled"] == VariantSpec.parse("snapkv:budget=96,pool=none")
    assert by_label["preset kvpress"].params["window"] == 64


@pytest.mark.parametrize(
    ("base", "window"),
    [
        ("snapkv:budget=63", 32),
        ("snapkv:budget=64", 32),
        ("snapkv:budget=65", 64),
        ("snapkv:budget=68,sinks=4", 32),
        ("snapkv:budget=10%", 64),
        ("snapkv:budget=64,window=64", 64),
    ],
)
def test_the_step_of_the_preset_takes_its_window_only_where_entries_can_be_chosen(base, window):
    (step,) = [step for step in ablation(base) if step.label == "preset kvpress"]
    assert VariantSpec.parse(step.spec).params["window"] == window


def test_a_base_that_chooses_nothing_keeps_its_spec():
    assert ablation("snapkv:budget=32")[0].spec == "snapkv:budget=32"


def test_a_step_that_would_keep_the_same_as_another_is_left_out():
    labels = {step.label for step in ablation("snapkv:pool=none")}
    assert not labels & {"base, not pooled", "stage 2 pooled", "alpha 0.25"}


@pytest.mark.parametrize("base", ["full", "streaming_llm:budget=64"])
def test_a_method_without_attention_scores_has_no_ablation(base):
    with pytest.raises(ConfigError, match="has no ablation"):
        ablation(base)


def result_of(specs: list[str]) -> RunResult:
    """Head L1 of variant i is i everywhere but in head 0, where it falls; layer 1 is whole."""

    def moved(index: int) -> Perturbation:
        heads = array([-index, index], [math.nan, math.nan])
        return measured(heads, [1.0, index], index / 10)

    return RunResult(
        variants=[
            variant(text, None if text == "full" else moved(index))
            for index, text in enumerate(specs)
        ]
    )


def test_ablation_steps_of_a_run_are_read_against_the_ablations_base(monkeypatch):
    steps = ablation("snapkv:budget=96")
    run = result_of(["full", *(step.spec for step in steps)])
    found = ablation_of(run)
    with monkeypatch.context() as patch:  # each page that follows the run asks again and again
        patch.setattr(VariantSpec, "parse", None)
        assert ablation_of(run) == found
    assert [each.step for each in found] == list(steps)
    assert [each.index for each in found] == list(range(1, len(steps) + 1))
    assert found[0].better_heads is None
    assert {(each.better_heads, each.heads) for each in found[1:]} == {(0.5, 2)}
    assert found[3].final_hidden_l1 == 4.0
    assert found[3].kl == pytest.approx(0.4)
