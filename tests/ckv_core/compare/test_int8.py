"""`store=int8`: on any method, as if the kept entries of a full cache had been rounded."""

import pytest
import torch
from transformers import DynamicCache

from ckv_core.compare.compare import compare
from ckv_core.methods import STORES
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunResult
from tests.factories.models import plain_model, tiny_model
from tests.reference.checks import kept_from_mask
from tests.reference.eight_bits import round_kept
from tests.reference.evicting_methods import h2o, tova
from tests.reference.forward import Tap, evictable_layers, forward
from tests.reference.report import report
from tests.reference.stepwise import decode

INT8 = STORES["int8"]
BUDGETED = ("snapkv:window=8", "adakv:window=8", "tova", "h2o")


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_runs_write_what_a_rounded_masked_full_cache_writes(arch: str) -> None:
    loaded, model, result = tiny_model(arch), plain_model(arch), RunResult()
    specs = [f"{spec}{',' if ':' in spec else ':'}budget=25,store=int8" for spec in BUDGETED]
    asked = CompareRequest(
        context=report()[:150],
        question="What?",
        scenario="context-only",
        variants=("full", *specs),
        max_new_tokens=8,
        ignore_eos=True,
    )
    for event in compare(asked, loaded):
        result.apply(event)
    prompt = result.prompt
    assert prompt is not None
    first = list(prompt.token_ids[: prompt.compressed_tokens])
    read = list(prompt.token_ids[len(first) :])
    for variant in result.variants[1:]:
        assert variant.retained is not None
        assert variant.receipt is not None
        kept = kept_from_mask(variant.retained.mask(), loaded.info.evictable_layers)
        cache, tap = DynamicCache(config=model.config), Tap(rows=len(first))
        forward(model, first, cache, tap=tap)
        begin, policy = {"tova": tova, "h2o": h2o}.get(variant.method, lambda _: (None, None))(25)
        for layer in evictable_layers(model) if begin else ():
            begin(layer, tap.attention[layer], loaded.info.kv_heads)
        round_kept(cache, kept)
        unchanged = policy or (lambda _step, _layer, held, _attention: held)
        logits, _ = decode(model, cache, kept, read, list(variant.token_ids), unchanged)
        assert [int(each.argmax()) for each in logits[:-1]] == list(variant.token_ids[1:])
        entries, dim = variant.receipt.retained_entries, loaded.info.head_dim
        heads = len(evictable_layers(model)) * loaded.info.kv_heads
        assert variant.receipt.cache_bytes == entries * (2 * dim + 4) + heads * dim * 4


def test_heads_that_keep_nothing_hold_their_scales_alone() -> None:
    segment = INT8.encode(torch.zeros(2, 0, 16), torch.zeros(2, 0, 16), {})
    assert [states.shape for states in segment.decoded()] == [(2, 0, 16)] * 2
    assert segment.nbytes == 2 * 16 * 4
