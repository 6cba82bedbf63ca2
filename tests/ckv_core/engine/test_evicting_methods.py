"""Methods that evict while they generate, in whole runs: the literal methods' sets and texts."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from ckv_core.engine import prefill
from ckv_core.engine.choose import row_plan
from ckv_core.engine.compare import compare
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.select import select
from ckv_core.errors import ModelError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import SCENARIOS
from ckv_core.records.variants import VariantSpec
from tests.factories.decoding import CLOSE, decoder_of, prefilled
from tests.factories.events import folded
from tests.factories.models import half_model, plain_model, prompt_ids, tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference import cache_positions, evicting_methods
from tests.reference.checks import kept_of
from tests.reference.forward import Held, decode
from tests.reference.report import report

pytestmark = pytest.mark.slow

METHODS = {
    "tova": evicting_methods.tova,
    "h2o": evicting_methods.h2o,
    "scissorhands": evicting_methods.scissorhands,
    "streaming_llm": evicting_methods.streaming_llm,
}
PARAMETERS = {"scissorhands": ",history=70,recent=4,drop=0.3", "streaming_llm": ",rolling=on"}
BUDGET = 25


@pytest.mark.parametrize(
    ("arch", "scenario"),
    [
        ("llama", "context-only"),
        ("gemma3", "regular"),
        ("gpt_oss", "regular"),
        ("qwen3_5", "context-only"),
    ],
)
def test_kept_sets_and_tokens_are_those_of_the_literal_method(arch, scenario, monkeypatch):
    monkeypatch.setattr(prefill, "CHUNK", 48)  # statistics are gathered over several chunks
    asked = short_request(
        "full",
        *(f"{name}:budget={BUDGET}{PARAMETERS.get(name, '')}" for name in METHODS),
        scenario=scenario,
        context=report()[:110],
        analysis=("forced",),
        follow_ups=("Where?",) if scenario == "context-only" else (),
    )
    loaded = tiny_model(arch)
    result = folded(compare(asked, loaded))
    again = from_json(json.loads(json.dumps(to_json(result))))
    assert [one.held for one in again.variants] == [one.held for one in result.variants]
    plain, full = PlainRun(arch, result), result.variants[0]
    for variant in result.variants[1:]:
        kept = kept_of(result, variant)
        texts = [(plain.question, variant.token_ids), (plain.question, full.token_ids)]
        for each in variant.follow_ups:
            other = build_prompt(loaded.tokenizer, asked.context, each.question, scenario)
            texts.append((list(other.token_ids[len(plain.compressed) :]), each.token_ids))
        for number, (question, tokens) in enumerate(texts):
            begin, policy = METHODS[variant.method](BUDGET)
            cache, tap, before = plain.read()
            for layer, heads in plain.begun(begin, tap).items():
                assert [[i for i, keep in enumerate(row) if keep] for row in kept[layer]] == heads
            logits, held = decode(plain.model, cache, kept, question, list(tokens[:-1]), policy)
            chosen = [int(each.argmax()) for each in logits]
            if number == 0:
                _check_series(variant, held, result.prompt.tokens, loaded)
            if number == 1:  # the full cache's text is read, not written
                same = [a == b for a, b in zip(chosen, full.token_ids[1:], strict=True)]
                assert variant.analysis["forced_top1"][1:].tolist() == same
            else:
                assert chosen == list(tokens[1:])
            assert question or int(before.argmax()) == tokens[0]


@pytest.mark.parametrize("method", ["snapkv", "adakv"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_compaction_keeps_of_the_generated_entries_what_the_literal_one_does(method, scenario):
    spec = f"{method}:budget=40,window=4,kernel=3,every=9,to=6"
    asked = short_request(spec, scenario=scenario, max_new_tokens=24)
    result = folded(compare(asked, tiny_model("llama")))
    (variant,), plain = result.variants, PlainRun("llama", result)
    cache, _, _ = plain.read()
    policy = evicting_methods.compaction(9, 6, dict(variant.params))
    held = plain.check_tokens(variant, cache, policy)
    generated = [sum(i >= result.prompt.tokens for i in row) for row in held[0]]
    assert generated == [6 + 24 % 9] * plain.info.kv_heads


def _check_series(
    variant: VariantResult, held: list[Held | None], prompt_tokens: int, loaded: LoadedModel
) -> None:
    """The record's sets and counts at the end, and that all steps between lead there."""
    series, steps = variant.held, len(variant.token_ids) - 1
    evictable, bytes_each = loaded.info.evictable_layers, 2 * loaded.info.head_dim * 4
    for step in range(steps + 1):
        mask = series.mask(variant.retained, prompt_tokens + step, step)[list(evictable)]
        assert series.entries[step] == mask.sum()
        assert series.cache_bytes[step] == mask.sum() * bytes_each
    found = [[np.flatnonzero(row).tolist() for row in layer] for layer in mask]
    assert found == [held[layer] for layer in evictable]


# --- positions inside the cache: every step is the literal published cache's ----------------


def decoded(loaded: LoadedModel, texts: list[list[int]], parameters: str) -> Tensor:
    """Logits after each generated token, [steps, vocabulary]."""
    prompt, question, generated = texts
    spec = VariantSpec.parse(f"streaming_llm:budget={BUDGET},{parameters}")
    with torch.inference_mode():
        result = prefilled(loaded, prompt)
        decoder = decoder_of(result, [row_plan(spec, select(spec, result, BUDGET), result)])
        decoder.read(question)
        return torch.cat([decoder.feed(torch.tensor([[token]])) for token in generated])


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize("rolling", ["on", "off"])
def test_every_step_is_the_literal_caches(arch, rolling):
    loaded, plain = tiny_model(arch), plain_model(arch)
    texts = [prompt_ids(length, length) for length in (90, 5, 9)]
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
    asked = short_request("streaming_llm:budget=25,rolling=on,positions=cache")
    with pytest.raises(ModelError, match=said):
        next(compare(asked, tiny_model(arch)))
