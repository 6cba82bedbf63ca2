"""The rounding floor: tiny in float32, what eviction shows in bfloat16, and gone after its step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ckv_core.analysis.rounding import level_with_base, within_floor
from ckv_core.analysis.verdict.run import run_verdict
from ckv_core.comparison import generate
from ckv_core.comparison.compare import compare
from ckv_core.engine.decode import Decoder
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import SCENARIOS, CompareRequest
from ckv_core.results.events import RunResult
from ckv_core.results.records import RoundingFloor
from tests.factories.events import folded
from tests.factories.models import half_model, tiny_model
from tests.factories.runs import array, measured, run_of, variant
from tests.reference.report import report

# One of 300 entries goes, which moves a float32 run a little and a bfloat16 run no further
# than rounding does.
ASKED = CompareRequest(
    context=report()[:600],
    question="What was built?",
    variants=("full", "snapkv:budget=99%", "snapkv:budget=40"),
    max_new_tokens=4,
    ignore_eos=True,
)


def run(loaded: LoadedModel, asked: CompareRequest = ASKED) -> RunResult:
    result = folded(compare(asked, loaded))
    assert result.floor is not None
    return result


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_in_float32_another_order_of_summation_moves_next_to_nothing(arch, scenario):
    result = run(tiny_model(arch), replace(ASKED, scenario=scenario, analysis=("bounds",)))
    size = result.variants[1].analysis["hidden_norm_l1"]
    assert result.floor.final_hidden_l1 > 0
    assert (result.floor.layer_hidden_l1 < 1e-5 * size).all()
    assert result.floor.kl < 1e-5
    assert result.variants[2].perturbation.final_hidden_l1 > 1e3 * result.floor.final_hidden_l1


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_bfloat16_the_floor_is_what_a_variant_that_keeps_almost_all_shows(scenario):
    asked = replace(ASKED, scenario=scenario)
    exact, rounded = run(tiny_model("llama"), asked), run(half_model("llama"), asked)
    floor = rounded.floor
    assert (floor.layer_hidden_l1 > 1e3 * exact.floor.layer_hidden_l1).all()
    almost_all, little = (each.perturbation for each in rounded.variants[1:])
    assert floor.final_hidden_l1 / 3 < almost_all.final_hidden_l1 < floor.final_hidden_l1 * 3
    assert exact.variants[1].perturbation.final_hidden_l1 < floor.final_hidden_l1
    assert little.final_hidden_l1 > 3 * floor.final_hidden_l1


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_controls_are_in_the_batch_up_to_the_measured_step_and_change_no_figure(
    monkeypatch, scenario
):
    fed: list[int] = []
    forward = Decoder._forward

    def counted(self: Decoder, token_ids: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
        fed.append(len(token_ids))
        return forward(self, token_ids, logits_to_keep)

    monkeypatch.setattr(Decoder, "_forward", counted)
    asked = replace(ASKED, scenario=scenario)
    with_floor = run(tiny_model("llama"), asked)
    rows, seen = len(asked.variants), len(fed)
    first = 1 if scenario == "regular" else 2  # the question is read too
    assert fed[:first] == [rows + 1] * first
    assert set(fed[first:]) == {rows}
    monkeypatch.setattr(generate, "control_rows", lambda *_: [])
    without = folded(compare(asked, tiny_model("llama")))
    assert set(fed[seen:]) == {rows}
    assert without.floor is None
    for one, other in zip(with_floor.variants[1:], without.variants[1:], strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(
            one.perturbation.layer_hidden_l1, other.perturbation.layer_hidden_l1, rtol=1e-3
        )


# --- what it means for figures ------------------------------------------------------------


def judged(*finals: float, kl: float = 1.0) -> RunResult:
    """SnapKV, and CriticalKV upon it, with these final L1; the floor is 10, and 0.5 nats."""
    variants = [variant("full", stopped="eos")]
    for spec, final in zip(("snapkv:budget=64", "snapkv+critical:budget=64"), finals, strict=False):
        own = variant(spec, measured(array([1, 2, 3, 4]), final, kl), stopped="eos", agreement=1.0)
        variants.append(replace(own, receipt=replace(own.receipt, full_cache_bytes=2)))
    result = run_of(*variants)
    result.floor = RoundingFloor(layer_hidden_l1=np.array([0, 10], np.float32), kl=0.5)
    return result


def cautions(result: RunResult) -> list[str]:
    return [caution for caution in run_verdict(result).cautions if "floor" in caution]


def test_a_figure_above_the_floor_and_far_from_its_base_is_told_without_a_word():
    far = judged(40, 29.9)
    assert cautions(far) == [
        "KL of SnapKV + CriticalKV (paper) against SnapKV: a difference below this run's "
        "rounding floor (float32), so neither is closer."
    ]
    for floor in (replace(far.floor, kl=-1.0), None):
        far.floor = floor
        assert cautions(far) == []


def test_a_figure_within_the_floor_is_no_sign_of_eviction():
    result = judged(10, 10.5, kl=0.4)
    assert within_floor(result, 0) == []
    assert within_floor(result, 1) == ["final", "kl"]
    assert cautions(result) == [
        "Final hidden L1 and KL of SnapKV: below this run's rounding floor (float32), so eviction "
        "need not have moved it.",
        "KL of SnapKV + CriticalKV (paper): below this run's rounding floor (float32), so "
        "eviction need not have moved it.",
        "Final hidden L1 of SnapKV + CriticalKV (paper) against SnapKV: a difference below "
        "this run's rounding floor (float32), so neither is closer.",
    ]
    # A variant that evicts nothing gets no caution.
    whole = judged(0)
    receipt = whole.variants[1].receipt
    whole.variants[1] = replace(whole.variants[1], receipt=replace(receipt, cache_bytes=2))
    assert cautions(whole) == []


def test_only_a_variant_with_a_base_is_level_with_it():
    result = judged(40, 31)
    assert level_with_base(result, 1) == (None, [])
    assert level_with_base(result, 2) == (1, ["final", "kl"])
