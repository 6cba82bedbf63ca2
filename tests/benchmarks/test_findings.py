"""The findings' benchmark measures every step of the ablation at every base and budget."""

import numpy as np

from benchmarks import findings
from benchmarks.findings import (
    ablation_specs,
    step_rows,
)
from ckv_core.experiment.ablation import ablation
from ckv_core.records.variants import VariantSpec
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import BASE


def test_the_steps_are_the_ablations_and_two_more():
    own = {step.label: step.spec for step in ablation("adakv", {"budget": "10%"})}
    extras = {k: v for k, v in ablation_specs("adakv", "10%").items() if k not in own}
    assert {**own, **extras} == ablation_specs("adakv", "10%")
    assert set(extras) == set(findings.EXTRAS)
    assert {VariantSpec.parse(spec).params["budget"] for spec in extras.values()} == {"10%"}


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
