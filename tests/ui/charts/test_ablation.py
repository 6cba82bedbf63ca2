"""The ablation on screen: its steps join what was typed; and its chart."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ckv_core.experiment.ablation import ablation
from ckv_core.methods import METHODS
from ckv_core.records.external_selection import MAX_VARIANTS
from ckv_core.records.variants import VariantSpec
from tests.factories.runs import LAYERS, QUERY_HEADS, done_result, kept_variant
from tests.factories.tables import numbers, rows_of
from ui.charts.ablation import ablation_csv
from ui.charts.catalog import figure_of
from ui.charts.layout import GRID_COLOR
from ui.compare.form_values import FormValues, with_ablation
from ui.compare.offers import FIRST_CHIPS
from ui.compare.page import add_ablation

COLUMNS = ("heads_below_base", "head_l1_of_base", "final_hidden_l1_of_base")


def step_variant(spec: str, at: int, prompt: int):
    """Step `at` has figures of its own: some heads below the base, a lower final L1."""
    base = kept_variant()
    is_below = np.arange(QUERY_HEADS) < at % QUERY_HEADS
    factors = np.where(is_below, 0.5, 1 + at / 8).astype(np.float32)
    hidden = base.perturbation.layer_hidden_l1 / np.float32(at + 1)
    moved = dataclasses.replace(
        base.perturbation,
        head_l1=factors * (base.perturbation.head_l1 + 1),
        layer_hidden_l1=hidden * np.float32(1 + prompt if at else 1),
    )
    params = dict(VariantSpec.parse(spec).params)
    changes = {"spec": spec, "critical": "+critical" in spec, "params": params}
    return dataclasses.replace(base, perturbation=moved, **changes)


def ablation_run(*, steps: int | None = None, prompt: int = 0):
    """An ablation of SnapKV, or its first steps; each prompt has its own final L1."""
    specs = [step.spec for step in ablation("snapkv:budget=64")][:steps]
    result = done_result()
    tokens = tuple(range(prompt, prompt + len(result.prompt.token_ids)))
    return dataclasses.replace(
        result,
        prompt=dataclasses.replace(result.prompt, token_ids=tokens),
        variants=[step_variant(spec, at, prompt) for at, spec in enumerate(specs)],
    )


# --- its steps in the form ------------------------------------------------------------------


@pytest.mark.parametrize("base", [m.name for m in METHODS if m.supports_critical])
def test_the_form_with_a_ablation_is_a_valid_request(base):
    form = FormValues(context="a text", variants=tuple(with_ablation(base, FIRST_CHIPS)))
    assert len(form.request().validate()) <= MAX_VARIANTS


def test_what_was_chosen_stays_before_the_steps():
    chosen = [*FIRST_CHIPS, "snapkv:budget=256"]
    added = with_ablation("adakv", chosen)
    assert added[: len(chosen)] == chosen
    assert added[len(chosen) :] == [
        each.spec for each in ablation("adakv") if each.spec not in FIRST_CHIPS
    ]
    assert with_ablation("adakv", added) == added
    # A step that is chosen in its own words is not added again; CriticalKV stands for its base.
    steps = with_ablation("snapkv+critical:stage2=raw", FIRST_CHIPS)[len(FIRST_CHIPS) :]
    assert "" not in {spec.partition(":")[2] for spec in steps}
    assert any("alpha=0.5" in spec for spec in steps)


def test_a_base_without_ablation_keeps_what_was_chosen():
    for base in ("streaming_llm", "unheard", 3):
        event = SimpleNamespace(_data={"spec": base})
        chips, notice = add_ablation(["snapkv"], event)
        assert chips["__type__"] == "update"
        assert notice["tone"] == "error"
    chips, _ = add_ablation(["snapkv"], SimpleNamespace(_data={"spec": "adakv"}))
    assert chips == with_ablation("adakv", ["snapkv"])


# --- of one run -----------------------------------------------------------------------------


def test_each_bar_and_column_is_the_steps_own_share_of_the_base():
    run = ablation_run()
    base, *_ = moves = [variant.perturbation for variant in run.variants]
    below = [float((each.head_l1 < base.head_l1).mean()) for each in moves]
    head = [float(each.head_l1.mean() / base.head_l1.mean()) for each in moves]
    final = [float(each.final_hidden_l1 / base.final_hidden_l1) for each in moves]
    assert len(set(head)) == len(set(final)) == len(moves)
    assert len(set(below)) > 1
    figure = figure_of(run, "ablation", {})
    for bar, shares in zip(figure.data, (below, head, final), strict=True):
        np.testing.assert_allclose(bar.x, 100 * np.array(shares), rtol=1e-5)
        assert len(bar.y) == len(shares)
    found = rows_of(ablation_csv(run))
    for column, shares in zip(COLUMNS, (below, head, final), strict=True):
        np.testing.assert_allclose(numbers(found, column), shares, rtol=1e-5)
    assert len({bar.marker.color for bar in figure.data}) == 3
    assert len({bar.marker.pattern.shape for bar in figure.data}) == 3
    assert {axis.gridcolor for axis in figure.select_xaxes()} == {GRID_COLOR}


def test_a_base_that_moves_nothing_has_no_shares_but_a_chart_and_a_table():
    run = ablation_run()
    still = dataclasses.replace(
        run.variants[0].perturbation,
        head_l1=np.zeros((LAYERS, QUERY_HEADS), np.float32),
        layer_hidden_l1=np.zeros(LAYERS, np.float32),
    )
    run.variants[0] = dataclasses.replace(run.variants[0], perturbation=still)
    figure = figure_of(run, "ablation", {})
    assert np.isnan([*figure.data[1].x, *figure.data[2].x]).all()
    assert not np.isnan(figure.data[0].x).any()
    assert all(np.isfinite(axis.range).all() for axis in figure.select_xaxes())
    assert '"base",0.0,12,"",""' in ablation_csv(run).splitlines()[1]


def test_a_run_without_a_ablation_has_no_such_chart():
    assert figure_of(ablation_run(steps=2), "ablation", {}) is None
    assert figure_of(done_result(), "ablation", {}) is None
