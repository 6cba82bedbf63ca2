"""StreamingLLM with positions inside the cache: every step is the literal published cache's."""

import pytest
import torch
from torch import Tensor

from ckv_core.compare.choose import row_plan
from ckv_core.compare.compare import compare
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.rows import prompt_rows
from ckv_core.engine.select import select
from ckv_core.errors import ModelError
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.variants import VariantSpec
from tests.ckv_core.compare.test_decode_equality import CLOSE, prefilled
from tests.factories.events import folded
from tests.factories.models import half_model, plain_model, prompt_ids, tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference import cache_positions

BUDGET, STEPS = 24, 9


def decoded(loaded: LoadedModel, texts: list[list[int]], parameters: str) -> Tensor:
    """Logits after each generated token, [steps, vocabulary]."""
    prompt, question, generated = texts
    spec = VariantSpec.parse(f"streaming_llm:budget={BUDGET},{parameters}")
    with torch.inference_mode():
        result = prefilled(loaded, prompt)
        rows = prompt_rows(result, [row_plan(spec, select(spec, result, BUDGET), result)])
        decoder = Decoder(loaded, DecodeContext(loaded, rows.start(40), lambda: False))
        decoder.read(question)
        return torch.cat([decoder.feed(torch.tensor([[token]])) for token in generated])


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("rolling", ["on", "off"])
def test_every_step_is_the_literal_caches(arch, rolling):
    loaded, plain = tiny_model(arch), plain_model(arch)
    texts = [prompt_ids(length, length) for length in (90, 5, STEPS)]
    found = decoded(loaded, texts, f"rolling={rolling},positions=cache")
    expected = cache_positions.decode(plain, *texts, BUDGET, rolling=rolling == "on")
    torch.testing.assert_close(found, torch.stack(expected), **CLOSE)
    original = decoded(loaded, texts, f"rolling={rolling}")
    assert (found - original).abs().max() > 100 * (found - torch.stack(expected)).abs().max()


def test_half_precision_rounds_a_moved_key_once():
    """As far from float32 as with positions that stay: nothing adds up over the steps."""
    far = {}
    texts = [prompt_ids(length, length) for length in (90, 5, 40)]
    for positions in ("cache", "original"):
        parameters = f"rolling=on,positions={positions}"
        exact = decoded(tiny_model("llama"), texts, parameters)
        far[positions] = (decoded(half_model("llama"), texts, parameters) - exact).abs()[-20:]
    assert far["cache"].mean() < 1.5 * far["original"].mean()


def test_a_run_receipts_what_it_holds_and_says_what_moves():
    parameters = f"budget={BUDGET},rolling=on"
    asked = short_request(
        f"streaming_llm:{parameters}",
        f"streaming_llm:{parameters},positions=cache",
        analysis=("forced",),
    )
    result = folded(compare(asked, tiny_model("llama")))
    (stay, move), plain = result.variants, PlainRun("llama", result)
    assert (move.held.entries, move.held.cache_bytes) == (stay.held.entries, stay.held.cache_bytes)
    assert move.receipt.cache_bytes == stay.receipt.cache_bytes
    assert any("positions inside the cache" in each for each in move.receipt.warnings)
    texts = (plain.compressed, plain.question, list(move.token_ids))
    logits = cache_positions.decode(plain.model, *texts, BUDGET, rolling=True)
    assert [int(each.argmax()) for each in logits[:-1]] == list(move.token_ids[1:])


@pytest.mark.parametrize(
    ("arch", "said"), [("longrope", "depends on the length"), ("nope", "is not known")]
)
def test_models_whose_keys_cannot_be_moved_are_refused_at_once(arch, said):
    asked = short_request("streaming_llm:budget=24,rolling=on,positions=cache")
    with pytest.raises(ModelError, match=said):
        next(compare(asked, tiny_model(arch)))
