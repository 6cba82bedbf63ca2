"""The chain of bounds that the paper proves, oracles by their definition, the rounding floor."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ckv_core.engine import generate
from ckv_core.engine.compare import compare
from ckv_core.engine.decode import Decoder
from ckv_core.engine.diagnostics import bounds, oracle_mask
from ckv_core.engine.first_step import FullLayer
from ckv_core.experiment.rounding import within_floor
from ckv_core.experiment.verdict import verdict_of
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import RunResult
from ckv_core.records.records import Perturbation, RoundingFloor
from ckv_core.records.run_request import SCENARIOS, RunRequest
from tests.factories.events import folded
from tests.factories.models import half_model, tiny_model
from tests.factories.runs import array, measured, run_of, variant
from tests.reference.report import report

ENTRIES = 24


class Case:
    """One random layer in float64: two KV heads of two query heads each."""

    def __init__(self, seed: int, temperature: float, kept_share: float) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.attention = (normal(4, ENTRIES) * temperature).softmax(-1)
        self.values = normal(2, ENTRIES, 3) * normal(2, ENTRIES, 1).exp()
        self.weights = normal(4, 3, 5)
        projected = self.values.repeat_interleave(2, 0) @ self.weights
        self.norms = projected.abs().sum(-1)
        # A noisy proxy of the attention chooses, as the observation window does.
        proxy = self.attention.view(2, 2, -1).mean(1) * normal(2, ENTRIES).mul(0.5).exp()
        count = max(1, round(kept_share * ENTRIES))
        rank = proxy.argsort(-1, descending=True).argsort(-1)
        self.kept = rank < count
        self.stage_one = rank < max(1, count // 2)

    def measured(self) -> dict[str, Tensor]:
        return bounds(self.attention, self.norms, self.kept, self.stage_one)

    def l1(self, kept: Tensor | None = None) -> Tensor:
        mask = self.kept if kept is None else kept
        moved = moved_heads_double(self.attention, self.values, mask)
        return torch.stack([(moved[h] @ self.weights[h]).abs().sum() for h in range(4)])


def moved_heads_double(attention: Tensor, values: Tensor, kept: Tensor) -> Tensor:
    rows = []
    for head in range(len(attention)):
        a, n = attention[head], kept[head // 2]
        rows.append(((a - a * n / (a * n).sum())[:, None] * values[head // 2]).sum(0))
    return torch.stack(rows)


cases = st.builds(
    Case,
    st.integers(0, 2**31),
    st.sampled_from([0.5, 2.0, 5.0]),
    st.floats(0.05, 1.0),
)


def strong_heads(case: Case) -> int:
    """How many heads have a sigma over a half; the chain holds for them."""
    found, slack = case.measured(), 1e-9
    assert (case.l1() <= found["theta"] + slack).all()
    assert (found["theta"] <= found["theta_hat"] + slack).all()
    strong = found["sigma_stage1"] > 0.5
    assert (found["theta_hat"] <= found["theta_relaxed"] + slack)[strong].all()
    # and below it the last step turns around
    assert (found["theta_hat"] >= found["theta_relaxed"] - slack)[~strong].all()
    return int(strong.sum())


@given(cases)
def test_the_chain_of_bounds_holds_where_sigma_is_over_a_half(case):
    strong_heads(case)


@given(cases, st.integers(1, ENTRIES))
def test_an_oracle_keeps_what_it_must_and_the_best_of_the_rest(case, count):
    protected = torch.zeros(ENTRIES, dtype=torch.bool)
    protected[: count // 2] = True
    score = case.attention.view(2, 2, -1).mean(1).round(decimals=2)  # with ties
    counts = torch.tensor([count, max(count // 2, 1)])
    mask = oracle_mask(score, protected, counts)
    assert mask.sum(-1).tolist() == counts.tolist()
    for head in range(2):
        others = [i for i in range(ENTRIES) if not protected[i]]
        best = sorted(others, key=lambda i: (-float(score[head, i]), i))
        spare = max(int(counts[head]) - count // 2, 0)
        fixed = [i for i in range(ENTRIES) if protected[i]][: int(counts[head])]
        expected = sorted(fixed + best[:spare])
        assert mask[head].nonzero()[:, 0].tolist() == expected


# --- attention below the smallest float ---------------------------------------------------


def peaked() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A head that gives all but e**-200 of its attention to one entry, which is then dropped."""
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(1, 6, 4, generator=generator) * 0.1
    keys[0, 2] = torch.tensor([200.0, 0.0, 0.0, 0.0])
    values = torch.randn(1, 6, 4, generator=generator)
    query = torch.tensor([[1.0, 0.2, 0.0, 0.0]])
    kept = torch.ones(1, 6, dtype=torch.bool)
    kept[0, 2] = False
    return query, keys, values, kept


def test_head_l1_is_defined_where_the_kept_mass_underflows():
    query, keys, values, kept = peaked()
    (found,) = FullLayer(query, keys, values, Scaling(1.0), torch.eye(4), 6).head_l1([kept])
    logits = (query.double() @ keys[0].double().T)[0]
    assert logits.softmax(-1)[kept[0]].float().sum() == 0  # the fault that this test is about
    full = logits.softmax(-1) @ values[0].double()
    rest = logits[kept[0]].softmax(-1) @ values[0][kept[0]].double()
    assert found.item() == pytest.approx((full - rest).abs().sum().item(), rel=1e-5)


def test_theta_is_undefined_where_the_kept_mass_underflows():
    attention = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]])
    kept = torch.tensor([[False, True, True], [True, True, False]])
    theta = bounds(attention, torch.ones(2, 3), kept, kept)["theta"]
    assert theta.isnan().tolist() == [True, False]


def test_a_head_without_a_number_counts_in_no_share():
    """An imported run may hold one, on either side."""
    own = np.array([[1.0, 1.0, np.nan, 1.0]], np.float32)
    base = np.array([[2.0, np.nan, 2.0, 0.5]], np.float32)
    found = Perturbation(head_l1=own, base_head_l1=base, layer_hidden_l1=np.zeros(1), kl=0.0)
    assert found.improved_head_share == 0.5
    assert found.compared_heads == 2
    empty = replace(found, base_head_l1=np.full((1, 4), np.nan, np.float32))
    assert empty.improved_head_share is None


# One of 300 entries goes, which moves a float32 run a little and a bfloat16 run no further
# than rounding does.
ASKED = RunRequest(
    context=report()[:600],
    question="What was built?",
    variants=("full", "snapkv:budget=99%", "snapkv:budget=40"),
    max_new_tokens=4,
    ignore_eos=True,
)


def run(loaded: LoadedModel, asked: RunRequest = ASKED) -> RunResult:
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
    return [caution for caution in verdict_of(result).cautions if "floor" in caution]


def test_a_figure_within_the_floor_is_no_sign_of_eviction():
    result = judged(10, 10.5, kl=0.4)
    assert within_floor(result, 0) == []
    assert within_floor(result, 1) == ["final", "kl"]
    assert cautions(result) == [
        "Final hidden L1 and KL of SnapKV: below this run's rounding floor (float32), so it may "
        "be rounding alone.",
        "KL of CriticalKV-SnapKV (paper): below this run's rounding floor (float32), so "
        "it may be rounding alone.",
    ]
    # A variant that evicts nothing gets no caution.
    whole = judged(0)
    receipt = whole.variants[1].receipt
    whole.variants[1] = replace(whole.variants[1], receipt=replace(receipt, cache_bytes=2))
    assert cautions(whole) == []
