"""TOVA, H2O and Scissorhands in whole runs: kept sets and texts are the literal methods'."""

import json

import numpy as np
import pytest
from transformers import DynamicCache

from ckv_core.analysis.result_json import to_json
from ckv_core.compare.compare import compare
from ckv_core.engine import prefill
from ckv_core.engine.prompt import build_prompt
from ckv_core.errors import ConfigError
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import SCENARIOS, CompareRequest
from ckv_core.request.variants import VariantSpec
from ckv_core.results.codec import from_json
from ckv_core.results.records import VariantResult
from tests.factories.events import folded
from tests.factories.models import plain_model, tiny_model
from tests.reference import evicting_methods
from tests.reference.checks import kept_from_mask
from tests.reference.forward import Tap, evictable_layers, forward
from tests.reference.report import report
from tests.reference.stepwise import Held, decode

pytestmark = pytest.mark.slow

METHODS = {
    "tova": evicting_methods.tova,
    "h2o": evicting_methods.h2o,
    "scissorhands": evicting_methods.scissorhands,
    "streaming_llm": evicting_methods.streaming_llm,
}
PARAMETERS = {"scissorhands": ",history=70,recent=4,drop=0.3", "streaming_llm": ",rolling=on"}
BUDGET = 25


@pytest.mark.parametrize(("arch", "scenario"), [("llama", "context-only"), ("gemma3", "regular")])
def test_kept_sets_and_tokens_are_those_of_the_literal_method(
    arch: str, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "CHUNK", 48)  # statistics are gathered over several chunks
    asked = CompareRequest(
        context=report()[:150],
        question="What?",
        scenario=scenario,
        variants=(
            "full",
            *(f"{name}:budget={BUDGET}{PARAMETERS.get(name, '')}" for name in METHODS),
        ),
        max_new_tokens=9,
        ignore_eos=True,
        analysis=("forced",),
        follow_ups=("Where?",) if scenario == "context-only" else (),
    )
    loaded = tiny_model(arch)
    result = folded(compare(asked, loaded))
    again = from_json(json.loads(json.dumps(to_json(result))))
    assert [one.held for one in again.variants] == [one.held for one in result.variants]
    prompt, model = result.prompt, plain_model(arch)
    assert prompt is not None
    read = list(prompt.token_ids[prompt.compressed_tokens :])
    first = list(prompt.token_ids[: prompt.compressed_tokens])
    full = result.variants[0]
    for variant in result.variants[1:]:
        assert variant.retained is not None
        kept = kept_from_mask(variant.retained.mask(), loaded.info.evictable_layers)
        texts = [(read, variant.token_ids), (read, full.token_ids)]
        for each in variant.follow_ups:
            other = build_prompt(loaded.tokenizer, asked.context, each.question, scenario)
            texts.append((list(other.token_ids[len(first) :]), each.token_ids))
        for number, (question, tokens) in enumerate(texts):
            begin, policy = METHODS[variant.method](BUDGET)
            cache, tap = DynamicCache(config=model.config), Tap(rows=len(first))
            before = forward(model, first, cache, tap=tap)
            for layer in evictable_layers(model):
                heads = begin(layer, tap.attention[layer], loaded.info.kv_heads)
                assert [[i for i, keep in enumerate(row) if keep] for row in kept[layer]] == heads
            logits, held = decode(model, cache, kept, question, list(tokens[:-1]), policy)
            chosen = [int(each.argmax()) for each in logits]
            if number == 0:
                _check_series(variant, held, len(first) + len(read), loaded)
            if number == 1:  # the full cache's text is read, not written
                same = [a == b for a, b in zip(chosen, full.token_ids[1:], strict=True)]
                assert variant.analysis["forced_top1"][1:].tolist() == same
            else:
                assert chosen == list(tokens[1:])
            assert question or int(before.argmax()) == tokens[0]


@pytest.mark.parametrize("method", ["snapkv", "adakv"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_compaction_keeps_of_the_generated_entries_what_the_literal_one_does(
    method: str, scenario: str
) -> None:
    spec = f"{method}:budget=40,window=4,kernel=3,every=9,to=6"
    asked = CompareRequest(
        context=report()[:150],
        question="What?",
        scenario=scenario,
        variants=(spec,),
        max_new_tokens=24,
        ignore_eos=True,
    )
    loaded = tiny_model("llama")
    result = folded(compare(asked, loaded))
    ((variant,), prompt, model) = result.variants, result.prompt, plain_model("llama")
    assert prompt is not None
    assert variant.retained is not None
    kept = kept_from_mask(variant.retained.mask(), loaded.info.evictable_layers)
    cache = DynamicCache(config=model.config)
    forward(model, list(prompt.token_ids[: prompt.compressed_tokens]), cache)
    policy = evicting_methods.compaction(9, 6, dict(variant.params))
    read = list(prompt.token_ids[prompt.compressed_tokens :])
    logits, held = decode(model, cache, kept, read, list(variant.token_ids), policy)
    assert [int(each.argmax()) for each in logits[:-1]] == list(variant.token_ids[1:])
    generated = [sum(i >= prompt.tokens for i in row) for row in held[0] or []]
    assert generated == [6 + 24 % 9] * loaded.info.kv_heads


def test_compaction_follows_every_selector_and_refuses_what_leaves_no_choice() -> None:
    parameters = "budget=40,window=4,every=8,to=6"
    asked = CompareRequest(
        context=report()[:150],
        variants=tuple(f"snapkv{end}:{parameters}" for end in ("", "+critical", "+critical_auto")),
        max_new_tokens=12,
        ignore_eos=True,
    )
    for event in compare(asked, tiny_model("llama")):
        assert event is not None
    for wrong, said in (
        ("snapkv:every=64,to=32", "must be ever larger"),
        ("snapkv:to=32", "'to' needs 'every'"),
        ("streaming_llm:every=64", "not score by an observation window, so 'every' cannot apply"),
        ("h2o:every=64", "so 'every' cannot apply to it"),
    ):
        with pytest.raises(ConfigError, match=said):
            VariantSpec.parse(wrong)


def _check_series(
    variant: VariantResult, held: list[Held | None], prompt_tokens: int, loaded: LoadedModel
) -> None:
    """The record's sets and counts at the end, and that all steps between lead there."""
    assert variant.held is not None
    assert variant.retained is not None
    series, steps = variant.held, len(variant.token_ids) - 1
    evictable, bytes_each = loaded.info.evictable_layers, 2 * loaded.info.head_dim * 4
    for step in range(steps + 1):
        mask = series.mask(variant.retained, prompt_tokens + step, step)[list(evictable)]
        assert series.entries[step] == mask.sum()
        assert series.cache_bytes[step] == mask.sum() * bytes_each
    found = [[np.flatnonzero(row).tolist() for row in layer] for layer in mask]
    assert found == [held[layer] for layer in evictable]
