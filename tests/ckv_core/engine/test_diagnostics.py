"""Quantities of the measured step on tiny models, against a literal float64 computation."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.engine.compare import compare
from ckv_core.errors import RunCancelledError
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import Progress, VariantAnalysed
from ckv_core.records.metrics import ANALYSIS_ARRAYS
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import BASE, analysed, reference, run
from tests.reference.checks import kept_of
from tests.reference.diagnostics import Literal

pytestmark = pytest.mark.slow

# Float32 in the engine, on float32 activations, against float64; relative and absolute. The
# absolute parts are far below a head's own size, of the order of 10.
TOLERANCES = {
    "sigma_stage1": (2e-3, 1e-4),
    "sigma_kept": (2e-3, 1e-4),
    "sigma_oracle": (2e-3, 1e-4),
    "value_mass": (2e-3, 0),
    "theta": (2e-3, 2e-3),
    "theta_hat": (5e-3, 5e-3),
    "theta_relaxed": (5e-3, 5e-3),
    "hidden_cosine": (0.02, 1e-4),
    "hidden_norm_l1": (1e-3, 0),
    "head_alpha": (0, 1e-6),
}
# L1, L2 and the other oracles agree to 2e-5 where this was written.
TOLERANCE = (3e-3, 1e-4)
# Of the full cache's text; test_decode_equality looks at them.
FORCED = {name for name, quantity in ANALYSIS_ARRAYS.items() if quantity.group == "forced"}


@pytest.mark.parametrize(
    ("arch", "scenario"),
    [
        ("llama", "regular"),
        ("llama", "context-only"),
        ("qwen3", "context-only"),
        ("gemma3", "regular"),
        ("gpt_oss", "context-only"),
        ("qwen3_5", "regular"),
        ("mha", "regular"),
    ],
)
def test_every_quantity_equals_a_literal_computation(arch, scenario):
    result = analysed(arch, scenario)
    (full, *others), slow = result.variants, reference(arch, result)
    assert full.analysis.keys() == FORCED
    looked_at = set(FORCED)
    literal = Literal(slow, [(variant, kept_of(result, variant)) for variant in others])
    for variant, expected in zip(others, literal.quantities(), strict=True):
        assert variant.analysis.keys() == FORCED | expected.keys()
        looked_at |= expected.keys()
        # Exactly 0 where nothing is evicted, but for another order of sums where threads share the
        # rows out: by that the run's own control rows differ too, which is its rounding floor.
        evicts = variant.receipt.retained_entries < full.receipt.retained_entries
        floor = 0 if evicts else float(result.floor.layer_hidden_l1.max())
        for name, values in expected.items():
            rtol, atol = TOLERANCES.get(name, TOLERANCE)
            if name.endswith("_cascaded") or name.startswith(("hidden_", "normed_")):
                atol = max(atol, floor)
            note = f"{variant.spec}: {name}"
            found = variant.analysis[name]
            assert found.dtype == np.float32, note
            np.testing.assert_allclose(found, values, rtol=rtol, atol=atol, err_msg=note)
    # No text ends here, and none is sampled.
    others = {"length_ratio", "sampled_answer", "sampled_agreement", "sampled_spread"}
    assert looked_at | others == ANALYSIS_ARRAYS.keys()


@pytest.mark.parametrize("budgets", [("48",), ("40", "48")])
def test_plain_variants_take_the_runs_alpha_for_stage_one(budgets):
    changed = replace(BASE, variants=("snapkv", "streaming_llm"), analysis=("bounds",))
    sigmas = []
    for alpha in ("0", "0.5", "1"):
        result = run(replace(changed, budgets=budgets, alphas=(alpha,)))
        plain = [variant for variant in result.variants if variant.method != "full"]
        assert len(plain) == 2 * len(budgets)
        sigmas.append([variant.analysis["sigma_stage1"] for variant in plain])
        # SPEC and params do not tell these runs apart; what is written and read back does.
        read = from_json(json.loads(json.dumps(to_json(result)))).variants
        for variant in read[-len(plain) :]:
            assert "alpha" not in variant.params
            assert variant.analysis["stage1_alpha"].tolist() == [float(alpha)]
        if alpha == "1":
            for variant, sigma in zip(plain, sigmas[-1], strict=True):
                np.testing.assert_allclose(sigma, variant.analysis["sigma_kept"], atol=1e-6)
    for less, more in zip(sigmas[0], sigmas[1], strict=True):
        assert (less <= more + 1e-7).all()
        assert (less < more).any()


def test_the_rest_of_a_run_does_not_depend_on_the_diagnostics():
    plain, lab = run(replace(BASE, answer="")), analysed("llama", "regular")
    for variant, other in zip(plain.variants, lab.variants, strict=True):
        assert (variant.text, variant.token_ids) == (other.text, other.token_ids)
        assert variant.retained == other.retained
        assert set(variant.analysis) <= {"head_alpha"}  # of the selection, not the diagnostics
        assert not variant.answer_scores
        if variant.perturbation is not None:
            np.testing.assert_array_equal(variant.perturbation.head_l1, other.perturbation.head_l1)
            assert variant.perturbation.kl == other.perturbation.kl


def test_an_analysis_can_be_cancelled():
    is_stopped = False
    events = compare(replace(BASE, analysis=("bounds",)), tiny_model("llama"), lambda: is_stopped)
    for event in events:
        assert not isinstance(event, VariantAnalysed) or set(event.analysis) == {"head_alpha"}
        if isinstance(event, Progress) and event.stage == "analyse":
            break
    is_stopped = True
    with pytest.raises(RunCancelledError):
        next(events)
