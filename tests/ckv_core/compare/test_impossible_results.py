"""What cannot be a result fails with a sentence; tiny numbers are results and are computed."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ckv_core.compare.compare import compare
from ckv_core.engine.cache.prompt_slots import Keep, compact
from ckv_core.engine.decode import Decoder
from ckv_core.engine.receipt import receipt
from ckv_core.engine.rows import PromptRows, RowPlan
from ckv_core.engine.running_rows import next_tokens
from ckv_core.engine.select import Selection
from ckv_core.errors import ConfigError, EngineError
from ckv_core.measure.bounds import bounds
from ckv_core.measure.perturbation import head_l1
from ckv_core.methods.parts.critical import first_stage
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import RunEvent
from ckv_core.results.records import Perturbation
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import short_request

# --- stage 1 ------------------------------------------------------------------------------


@example(290_000, [100])  # 0.29 * 100 is 28.999... in floats; the user wrote 29 of 100
@example(570_000, [100])
@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**7), min_size=1, max_size=4))
def test_quotas_are_exact_for_every_alpha_that_can_be_written(millionths, budgets):
    alpha = VariantSpec.parse(f"snapkv+critical:alpha={millionths / 10**6}").params["alpha"]
    quotas = first_stage(torch.tensor(budgets), float(alpha)).tolist()
    assert quotas == [Fraction(millionths, 10**6) * budget // 1 for budget in budgets]


@pytest.mark.parametrize("alpha", ["1e-19", "0.3333333333333333", "0.1234567"])
def test_an_alpha_of_more_decimals_is_refused(alpha):
    with pytest.raises(ConfigError, match="at most 6 decimals"):
        VariantSpec.parse(f"adakv+critical:alpha={alpha}")
    with pytest.raises(ConfigError, match="at most 6 decimals"):
        first_stage(torch.tensor([2800]), float(alpha))


def test_what_a_form_makes_of_a_decimal_is_taken_as_meant():
    assert VariantSpec.parse(f"snapkv+critical:alpha={0.1 + 0.2}").params["alpha"] == 0.3


def test_another_number_of_kept_entries_than_asked_for_fails():
    model = tiny_model("llama").info
    keys = torch.zeros(model.kv_heads, 10, 4)
    mask = torch.zeros(model.kv_heads, 10, dtype=torch.bool)
    mask[:, :5] = True
    right = Selection(5, (mask,) * model.layers, ())
    plan, layers = RowPlan([Keep(mask)] * model.layers), [compact(keys, keys, [Keep(mask)])]
    rows = PromptRows(10, [plan], [None] * model.layers, [0], layers * model.layers, {})
    assert receipt(right, model, rows, 0).retained_entries == 5 * model.kv_heads * model.layers
    with pytest.raises(EngineError, match="where 36 were asked for"):
        receipt(replace(right, budget=6), model, rows, 0)


# --- numbers that are none ----------------------------------------------------------------


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_tokens_of_logits_that_are_not_finite_are_refused(wrong):
    logits = torch.zeros(2, 5)
    logits[1, 3] = 1.0
    assert next_tokens(logits) == [0, 3]
    logits[1, 2] = wrong
    with pytest.raises(EngineError, match="not finite"):
        next_tokens(logits)


def broken(part: str) -> LoadedModel:
    """A model of which one number is NaN."""
    loaded = tiny_model.__wrapped__("llama")
    with torch.no_grad():
        loaded.model.get_parameter(part)[0] = torch.nan
    return loaded


@pytest.mark.parametrize("part", ["model.norm.weight", "model.layers.1.input_layernorm.weight"])
@pytest.mark.parametrize("new_tokens", [1, 4])
def test_one_nan_weight_fails_the_run(part, new_tokens):
    asked = short_request("snapkv:budget=40", "full", max_new_tokens=new_tokens)
    seen: list[RunEvent] = []
    with pytest.raises(EngineError, match="not finite"):
        seen.extend(compare(asked, broken(part)))
    assert not any("Finished" in type(event).__name__ for event in seen)


def test_the_full_caches_text_read_by_a_variant_that_overflows_fails_the_run(monkeypatch):
    feed_all = Decoder.feed_all

    def overflowing(self: Decoder, token_ids: torch.Tensor) -> torch.Tensor:
        logits = feed_all(self, token_ids)
        logits[0, -1, 5] = torch.inf
        return logits

    monkeypatch.setattr(Decoder, "feed_all", overflowing)
    asked = short_request("snapkv:budget=40", "full", analysis=("forced",))
    with pytest.raises(EngineError, match="not finite"):
        list(compare(asked, tiny_model("llama")))


# --- attention below the smallest float ---------------------------------------------------


def peaked() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
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
    weight = torch.eye(4)
    (found,) = head_l1(query, keys, values, 1.0, weight, [kept])
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
