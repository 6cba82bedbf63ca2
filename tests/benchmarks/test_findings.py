"""Laws of the findings' benchmark: its steps, and what its tables say of texts made up here."""

import numpy as np

from benchmarks import findings
from benchmarks.findings import (
    Measured,
    ablation_specs,
    layer_rows,
    step_rows,
)
from ckv_core.experiment.ablation import ablation
from ckv_core.experiment.sweep import AlphaOptimum
from ckv_core.methods.parameters import Budget
from ckv_core.records.variants import VariantSpec
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import BASE

LAYERS, QUERY_HEADS, KV_HEADS = 2, 4, 2
ABLATION_STEPS = tuple(ablation_specs("snapkv", "64"))


def made_up(scale: float = 1.0, **by_step: np.ndarray) -> Measured:
    """Every head of every step moves by `scale` but for the steps named, underscores for blanks."""
    heads = {step: np.full((LAYERS, QUERY_HEADS), scale, np.float32) for step in ABLATION_STEPS}
    heads |= {step.replace("_", " "): values for step, values in by_step.items()}
    sums = {step: float(values.sum()) for step, values in heads.items()}
    empty = np.full((LAYERS, KV_HEADS), np.nan, np.float32)
    return Measured(
        heads=heads,
        final=sums,
        kl=sums,
        chosen=np.array([[0, 0], [0.25, 1]], np.float32),
        optimum=AlphaOptimum(
            spec="snapkv+critical",
            budget=Budget(64.0, "tokens"),
            alphas=(0.0, 0.25, 0.5, 1.0),
            indices=(0, 1, 2, 3),
            best_fixed=0.25,
            layer_alpha=empty[:, 0],
            head_alpha=empty,
            layer_gain=0.0,
            head_gain=0.04,
        ),
    )


def test_the_steps_are_the_ablations_and_two_more():
    own = {step.label: step.spec for step in ablation("adakv", {"budget": "10%"})}
    extras = {k: v for k, v in ablation_specs("adakv", "10%").items() if k not in own}
    assert {**own, **extras} == ablation_specs("adakv", "10%")
    assert set(extras) == set(findings.EXTRAS)
    assert {VariantSpec.parse(spec).params["budget"] for spec in extras.values()} == {"10%"}


def test_a_step_is_paired_text_by_text():
    half = np.full((LAYERS, QUERY_HEADS), 0.5, np.float32)
    half[0, 0] = 4.0
    texts = [made_up(CriticalKV=half), made_up(10.0, CriticalKV=10 * half)]
    rows = {row[0]: row[1:] for row in step_rows(texts)}
    # Seven of eight heads by a factor of 2, one by 1/4: (7 - 2) / 8; the sums are 7.5 and 8.
    final = f"{np.log2(8 / 7.5):.3g}"
    both = ("base → CriticalKV", "87.5 %", "12.5 %", "0.625", final, "2 of 2", "2 of 2")
    assert rows["both"] == both
    assert rows["alpha per KV head instead of 0"][1:] == ("0 %", "0 %", "0", "0", *["0 of 2"] * 2)
    assert rows["alpha 0 instead of 0.25"][1:4] == ("12.5 %", "87.5 %", "-0.625")


def test_the_value_norm_is_told_by_layer_for_it_is_a_mean_of_opposites():
    norm = np.array([[2.0] * QUERY_HEADS, [0.5] * QUERY_HEADS], np.float32)
    rows = layer_rows([made_up(CriticalKV=norm), made_up(3.0, CriticalKV=3 * norm)])
    assert rows[0] == ("value norm, un-pooled, two stages", "0", "-1", "2 of 2")
    assert rows[1][1:] == ("1 to 1", "1", "0 of 2")


def test_a_text_is_measured_at_every_base_budget_and_step():
    prompt = {"kind": "report", "context": BASE.context, "question": BASE.question}
    text = findings.measure(tiny_model("llama"), prompt, ["snapkv", "adakv"], ["80", "96"])
    assert list(text.settings) == [(b, c) for b in ("snapkv", "adakv") for c in ("80", "96")]
    for (base, budget), found in text.settings.items():
        assert list(found.heads) == list(ablation_specs(base, budget))
        assert str(found.optimum.budget) == budget
        np.testing.assert_allclose(found.heads["alpha 1"], found.heads["base"], rtol=1e-5)
    heads = [each.heads["base"] for each in text.settings.values()]
    assert not any(np.array_equal(heads[0], other) for other in heads[1:])
    assert step_rows(list(text.settings.values()))
