"""Compact batched decode against the full cache with evicted entries masked; no state leaks."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from ckv_core.comparison.compare import compare
from ckv_core.engine.decode import READ_CHUNK
from ckv_core.engine.prefill import CHUNK
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.methods import partial_attention as partial
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import SCENARIOS, CompareRequest, Scenario
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult
from tests.factories.decoding import BUDGET, CLOSE, PROMPT_LEN, masked, prefilled, steady_decoder
from tests.factories.events import folded
from tests.factories.models import (
    ARCHITECTURES,
    LONGROPE_ORIGINAL,
    SPECS,
    plain_model,
    prompt_ids,
    tiny_model,
)
from tests.factories.tiny_runs import short_request
from tests.reference.forward import forward
from tests.reference.report import report

pytestmark = pytest.mark.slow

# A run takes 16 variants at most.
GROUPS = (SPECS[::2], SPECS[1::2])
# Each method once, in one scenario or the other, on layers with and without sliding windows.
HALVES = [
    pytest.param(GROUPS[0], "llama", "context-only", id="llama"),
    pytest.param(GROUPS[1], "gemma3", "regular", id="gemma3"),
]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_equal_the_masked_full_cache(arch):
    """A pass over several tokens (a question), then single tokens, other ones in every row."""
    loaded = tiny_model(arch)
    token_ids = prompt_ids(PROMPT_LEN)
    fed = [prompt_ids(21, seed) for seed in range(len(SPECS))]
    passes = [slice(0, 9), slice(9, 18), slice(18, 19), slice(19, 20), slice(20, 21)]
    with torch.inference_mode():
        decoder, selections = steady_decoder(prefilled(loaded, token_ids), 21)
        actual = [decoder.feed(torch.tensor(fed)[:, part]) for part in passes]
    whole = DynamicCache(config=plain_model(arch).config)
    forward(plain_model(arch), token_ids, whole)
    for row, selection in enumerate(selections):
        cache, kept = deepcopy(whole), masked(selection.keep_masks, loaded, PROMPT_LEN)
        for part, logits in zip(passes, actual, strict=True):
            expected = forward(plain_model(arch), fed[row][part], cache, kept=kept)
            torch.testing.assert_close(logits[row], expected, **CLOSE)


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "longrope"])
@pytest.mark.parametrize("length", [1, PROMPT_LEN, CHUNK + 70])
def test_prefill_equals_plain_transformers(arch, length):
    """In one chunk and in two; sliding layers, whose plain cache holds the window, included."""
    loaded = tiny_model(arch)
    token_ids = prompt_ids(length)
    result = prefilled(loaded, token_ids)
    cache = DynamicCache(config=plain_model(arch).config)
    logits = forward(plain_model(arch), token_ids, cache)
    torch.testing.assert_close(result.logits, logits, **CLOSE)
    for states, plain in zip(result.layers, cache.layers, strict=True):
        held = plain.keys.shape[2]
        assert held <= states.keys.shape[1] == length
        torch.testing.assert_close(states.keys[:, -held:], plain.keys[0], **CLOSE)
        torch.testing.assert_close(states.values[:, -held:], plain.values[0], **CLOSE)


@pytest.mark.parametrize(
    ("length", "question"),
    [
        pytest.param(CHUNK + 70, 9, id="a long prompt"),
        pytest.param(LONGROPE_ORIGINAL - READ_CHUNK - 20, READ_CHUNK + 40, id="over the border"),
    ],
)
def test_longrope_decodes_as_plain_transformers(length, question):
    """Factors are those of the whole question, and from then on those of each step."""
    loaded, plain = tiny_model("longrope"), plain_model("longrope")
    token_ids = prompt_ids(length + question + 3)
    parts = (token_ids[length:-3], token_ids[-3:-2], token_ids[-2:-1], token_ids[-1:])
    cache = DynamicCache(config=plain.config)
    expected = [forward(plain, part, cache) for part in (token_ids[:length], *parts)][1:]
    with torch.inference_mode():
        result = prefilled(loaded, token_ids[:length])
        decoder, _ = steady_decoder(result, question + 3, ("full",))
        actual = [decoder.read(part)[0] for part in parts]
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), **CLOSE)


def test_longrope_reads_a_generated_text_as_it_was_generated():
    """Over the border too, where each token had the factors of its own step."""
    loaded = tiny_model("longrope")
    length = LONGROPE_ORIGINAL - 3
    token_ids = prompt_ids(length + 6)
    fed = torch.tensor([token_ids[length:]])
    with torch.inference_mode():
        result = prefilled(loaded, token_ids[:length])
        steps, together = (steady_decoder(result, 6, ("full",))[0] for _ in range(2))
        expected = torch.stack([steps.feed(fed[:, at : at + 1]) for at in range(6)], dim=1)
        torch.testing.assert_close(together.feed_all(fed), expected, **CLOSE)


def test_rows_in_blocks_of_queries_give_the_same(monkeypatch):
    loaded = tiny_model("gemma3")
    token_ids = prompt_ids(PROMPT_LEN)
    fed = torch.tensor([prompt_ids(17)] * len(SPECS))
    with torch.inference_mode():
        result = prefilled(loaded, token_ids)
        expected = steady_decoder(result, 17)[0].feed(fed)
        monkeypatch.setattr(partial, "MAX_LOGITS", 5_000)
        actual = steady_decoder(result, 17)[0].feed(fed)
    torch.testing.assert_close(actual, expected, **CLOSE)


# --- whole runs ---------------------------------------------------------------------------


def request(scenario: Scenario, variants: tuple[str, ...], *, start: int = 0) -> CompareRequest:
    text, defaults = report()[start : start + 300], {"budget": str(BUDGET)}
    return short_request(*variants, scenario=scenario, context=text, defaults=defaults)


def run(
    asked: CompareRequest, loaded: LoadedModel, prefills: PrefillCache | None = None
) -> RunResult:
    result = folded(compare(asked, loaded, prefills=prefills))
    assert result.finished
    return result


def outcome(variant: VariantResult) -> tuple[object, ...]:
    """Everything but times, exactly; distances last."""
    moved = variant.perturbation
    distances = moved and (moved.head_l1.tobytes(), moved.layer_hidden_l1.tobytes(), moved.kl)
    return (variant.retained, variant.token_ids, variant.text, variant.receipt, distances)


def outcomes(result: RunResult) -> list[tuple[object, ...]]:
    return [outcome(variant) for variant in result.variants]


@pytest.mark.parametrize(("methods", "arch", "scenario"), HALVES)
def test_a_batch_gives_each_variant_what_it_gets_alone(methods, arch, scenario):
    prefills = PrefillCache(2**30)  # the same for both; what a batch changes comes after it
    together = run(request(scenario, methods), tiny_model(arch), prefills)
    for name, in_batch in zip(methods, together.variants, strict=True):
        (alone,) = run(request(scenario, (name,)), tiny_model(arch), prefills).variants
        assert outcome(alone)[:-1] == outcome(in_batch)[:-1]
        if name == "full":
            assert alone.perturbation is in_batch.perturbation is None
            continue
        # matrix products of another batch size may round differently
        assert alone.perturbation.layer_hidden_l1.tolist() == pytest.approx(
            in_batch.perturbation.layer_hidden_l1.tolist(), rel=1e-3, abs=1e-3
        )


@pytest.mark.parametrize(("methods", "scenario"), [*zip(GROUPS, SCENARIOS, strict=True)])
def test_the_order_of_variants_changes_nothing(methods, scenario):
    forwards = run(request(scenario, methods), tiny_model("qwen3"))
    backwards = run(request(scenario, methods[::-1]), tiny_model("qwen3"))
    for one, other in zip(forwards.variants, backwards.variants[::-1], strict=True):
        assert (one.retained, one.token_ids) == (other.retained, other.token_ids)


def test_a_sequence_of_runs_equals_fresh_models():
    """Other texts, scenarios and parameters before a run, or one that ends early, leave nothing."""
    arch = "gemma3"  # layers of both kinds
    used = tiny_model.__wrapped__(arch)
    asked = [
        request("regular", GROUPS[0]),
        request("context-only", ("adakv:safeguard=0", "full"), start=700),
        request("context-only", GROUPS[1], start=300),
        request("regular", ("pyramidkv+critical:sinks=3,beta=2",), start=1200),
    ]
    in_sequence = []
    for one in asked:
        cancelled = compare(one, used)
        for _ in range(6):
            next(cancelled)
        cancelled.close()
        in_sequence.append(outcomes(run(one, used)))
    fresh = [outcomes(run(one, tiny_model.__wrapped__(arch))) for one in asked]
    assert in_sequence == fresh
    assert outcomes(run(asked[0], used)) == fresh[0]


@pytest.mark.parametrize(("methods", "arch", "scenario"), HALVES)
def test_a_row_that_meets_its_end_token_stops_and_the_others_go_on(methods, arch, scenario):
    loaded, asked = tiny_model(arch), request(scenario, methods)
    free = run(asked, loaded).variants
    end = next(
        token
        for token in free[1].token_ids[1:]
        if any(token not in variant.token_ids for variant in free)
    )
    stopping = replace(loaded, eos_token_ids=frozenset({end}))
    ended = run(replace(asked, ignore_eos=False), stopping).variants
    for variant, whole in zip(ended, free, strict=True):
        ids = list(whole.token_ids)
        cut = ids.index(end) + 1 if end in ids else len(ids)
        assert list(variant.token_ids) == ids[:cut]
        assert variant.stopped == ("eos" if end in ids else "length")
