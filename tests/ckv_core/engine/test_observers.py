"""Observers: what they gather chunk by chunk, against the whole matrix of attention at once."""

from functools import partial

import pytest
import torch
from torch import Tensor

from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.causal import log_sum_exp
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.methods.h2o import ACCUMULATED, AccumulatedAttention
from ckv_core.methods.parts.views import Chunk, begun
from tests.factories.models import drained, prompt_ids, tiny_model

NEEDS = Needs(8, (ACCUMULATED,))


@torch.inference_mode()
def read(arch: str, length: int, needs: Needs = NEEDS) -> Prefill:
    return drained(prefill(tiny_model(arch), prompt_ids(length), needs, lambda: False))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_accumulated_attention_is_the_column_sum_of_the_matrix(kv_heads):
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(4, 9, 6, generator=generator)
    keys = torch.randn(kv_heads, 9, 6, generator=generator)
    found = begun(ACCUMULATED, queries, 9)
    for start, end in ((0, 4), (4, 9)):
        part = (queries[:, start:end], keys[:, :end])
        totals = partial(log_sum_exp, *part, 0.3)
        ACCUMULATED.see(found, Chunk(start, *part, keys, 0.3, lambda: None, totals, torch.empty))
    for head in range(4):
        columns = [0.0] * 9
        for t in range(9):
            own = keys[head // (4 // kv_heads), : t + 1].double() @ queries[head, t].double()
            for place, weight in enumerate((own * 0.3).softmax(-1).tolist()):
                columns[place] += weight
        torch.testing.assert_close(found[head], torch.tensor(columns), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_prompt_in_chunks_gathers_what_one_pass_does(arch, monkeypatch):
    """Of evictable layers only; every query gives 1 in all."""
    whole = read(arch, 150).observed[ACCUMULATED.key]
    monkeypatch.setattr(engine_prefill, "CHUNK", 64)
    parts = read(arch, 150).observed[ACCUMULATED.key]
    evictable = tiny_model(arch).info.evictable_layers
    assert tuple(whole) == tuple(parts) == evictable
    for layer in evictable:
        torch.testing.assert_close(parts[layer], whole[layer], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole[layer].sum(-1), torch.full((4,), 150.0))


class Projected(AccumulatedAttention):
    """Gathers instead how close each query is to what the hidden states give, 1 at most."""

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        first = tiny_model("llama").attentions[0]
        heads = first.qkv_proj(chunk.hidden())[:, : len(statistic) * 16].unflatten(1, (-1, 16))
        turned = chunk.rotary().turn(heads.transpose(0, 1), chunk.start)
        end = chunk.start + chunk.queries.shape[1]
        difference = (turned - chunk.queries).abs().amax(2)
        statistic[:, chunk.start : end] = 1 / (1 + difference)


def test_an_observer_that_asks_sees_the_hidden_states(monkeypatch):
    """Through layer 0's own projection and RoPE they are its queries, chunk by chunk."""
    monkeypatch.setattr(engine_prefill, "CHUNK", 64)
    asking = Projected("projected")
    found = read("llama", 150, Needs(8, (asking, ACCUMULATED))).observed[asking.key]
    assert found[0].amin() > 1 - 1e-4
    assert found[1].amin(0).amax() < 1 - 1e-2, "another layer is given other states"
