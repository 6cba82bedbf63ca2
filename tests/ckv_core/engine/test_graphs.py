"""Steps recorded as a CUDA graph; an emulated device tries the same in `tests/fake_device`."""

import logging
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from transformers import PreTrainedModel

from ckv_core.engine import graphs
from tests.factories.decoding import replayed_beside_usual
from tests.factories.models import tiny_model, tiny_model_on


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_replayed_steps_give_what_usual_ones_give(arch, dtype, most):
    loaded = tiny_model_on(arch, partial(PreTrainedModel.to, device="cuda", dtype=dtype))
    apart, replayed = replayed_beside_usual(loaded)
    assert replayed == 5 + 4 + 4 + 2
    assert apart < most


def test_windows_experts_and_rope_that_looks_at_positions_have_no_fixed_shape(monkeypatch):
    monkeypatch.setattr(graphs, "is_cuda_like", lambda _device: True)
    loaded = tiny_model("llama")
    assert graphs.can_record(loaded)
    assert not graphs.can_record(tiny_model("gemma3"))
    assert not graphs.can_record(tiny_model("qwen3_moe"))
    monkeypatch.setattr(loaded.model.model.rotary_emb, "rope_type", "dynamic")
    assert not graphs.can_record(loaded)


def test_nothing_is_recorded_on_a_cpu():
    assert not graphs.can_record(tiny_model("llama"))


def test_a_step_that_cannot_be_recorded_is_computed_as_always(monkeypatch, caplog):
    monkeypatch.setattr(graphs, "is_cuda_like", lambda _device: True)
    monkeypatch.setattr(graphs, "_recorded", Mock(side_effect=RuntimeError("not permitted")))
    with caplog.at_level(logging.WARNING):
        apart, replayed = replayed_beside_usual(tiny_model("llama"))
    assert (apart < 1e-4, replayed) == (True, 0)
    assert "not permitted" in caplog.text
