"""Observers: what they gather chunk by chunk, against the whole matrix of attention at once."""

import pytest
import torch

from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.methods.parts.accumulated import ACCUMULATED
from ckv_core.methods.parts.views import Chunk
from tests.core.tiny_models import tiny_model

NEEDS = Needs(8, (ACCUMULATED,))


def ids(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(11)
    return torch.randint(4, 200, (length,), generator=generator).tolist()


@torch.inference_mode()
def read(arch: str, length: int, needs: Needs = NEEDS) -> Prefill:
    work = prefill(tiny_model(arch), ids(length), needs, lambda: False)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_accumulated_attention_is_the_column_sum_of_the_matrix(kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(4, 9, 6, generator=generator)
    keys = torch.randn(kv_heads, 9, 6, generator=generator)
    found = ACCUMULATED.begin(4, kv_heads, 9, keys)
    for start, end in ((0, 4), (4, 9)):
        seen = Chunk(start, queries[:, start:end], keys[:, :end], keys, 0.3, lambda: None)
        ACCUMULATED.see(found, seen)
    for head in range(4):
        columns = [0.0] * 9
        for t in range(9):
            own = keys[head // (4 // kv_heads), : t + 1].double() @ queries[head, t].double()
            for place, weight in enumerate((own * 0.3).softmax(-1).tolist()):
                columns[place] += weight
        torch.testing.assert_close(found[head], torch.tensor(columns), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_prompt_in_chunks_gathers_what_one_pass_does(arch: str, monkeypatch) -> None:
    """Of evictable layers only; every query gives 1 in all."""
    whole = read(arch, 150).observed[ACCUMULATED.key]
    monkeypatch.setattr(engine_prefill, "CHUNK", 64)
    parts = read(arch, 150).observed[ACCUMULATED.key]
    evictable = tiny_model(arch).info.evictable_layers
    assert tuple(whole) == tuple(parts) == evictable
    for layer in evictable:
        torch.testing.assert_close(parts[layer], whole[layer], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole[layer].sum(-1), torch.full((4,), 150.0))


def test_a_kept_prefill_serves_only_what_it_has_observed() -> None:
    kept, token_ids = PrefillCache(2**30), ids(2_200)
    kept.put(token_ids, read("llama", 2_200, Needs(8)))
    assert kept.get(token_ids, NEEDS) is None
    assert kept.prefix([*token_ids, 5], Needs(8)) is not None
    assert kept.prefix([*token_ids, 5], NEEDS) is None, "an observer has to see all"
    kept.put(token_ids, read("llama", 2_200))
    assert kept.get(token_ids, NEEDS) is not None
    assert kept.get(token_ids, Needs(8)) is not None
