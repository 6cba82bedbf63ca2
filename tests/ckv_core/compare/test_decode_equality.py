"""Compact batched decode against the full cache with evicted entries masked; no state leaks."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from ckv_core.compare.compare import compare
from ckv_core.engine.cache.prompt_slots import Keep
from ckv_core.engine.decode import READ_CHUNK, DecodeContext, Decoder
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.head_tables import kept_table
from ckv_core.engine.needle_probe import probe
from ckv_core.engine.prefill import CHUNK, Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.rows import RowPlan, prompt_rows
from ckv_core.engine.select import select
from ckv_core.methods import partial_attention as partial
from ckv_core.methods.headkv import NEEDLE
from ckv_core.methods.parts.views import PromptTokens
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import SCENARIOS, CompareRequest, Scenario
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import RunResult
from tests.factories.events import folded
from tests.factories.models import (
    ARCHITECTURES,
    LONGROPE_ORIGINAL,
    drained,
    plain_model,
    prompt_ids,
    tiny_model,
)
from tests.factories.models import SPECS as METHODS
from tests.factories.tiny_runs import short_request
from tests.reference.checks import kept_from_mask
from tests.reference.forward import Kept, forward
from tests.reference.report import report

pytestmark = pytest.mark.slow

PROMPT_LEN = 150
BUDGET = 40
# Logits of these models reach about 10; three to four float32 layers sum some hundred
# products of order one in another order.
CLOSE = {"rtol": 1e-4, "atol": 2e-3}

NEEDS = Needs.of(map(VariantSpec.parse, METHODS))
# A run takes 16 variants at most.
GROUPS = (METHODS[::2], METHODS[1::2])


def prefilled(loaded: LoadedModel, token_ids: list[int]) -> Prefill:
    """With all that any method asks for; the needle probe runs once a model."""
    if kept_table(loaded.info, NEEDLE) is None:
        drained(probe(loaded))
    with torch.inference_mode():
        result = drained(prefill(loaded, token_ids, NEEDS, lambda: False))
        given = PromptTokens(tuple(token_ids), 0, (5,), lambda _text: [6, 7])
        planned = [(each, each.passes(given)) for each in NEEDS.passes]
        for _ in further_passes(result, planned, lambda: False):
            pass
    return result


def decoder_for(result: Prefill, names: tuple[str, ...], capacity: int) -> tuple[Decoder, Any]:
    """One row per method over its own compact cache; also the kept sets."""
    selections = []
    for name in names:
        spec = VariantSpec.parse(name)
        budget = result.prompt_len if name == "full" else BUDGET
        selections.append(select(spec, result, budget))
    plans = [RowPlan([Keep(mask) for mask in each.keep_masks]) for each in selections]
    rows = prompt_rows(result, plans)
    context = DecodeContext(result.loaded, rows.start(capacity), lambda: False)
    return Decoder(result.loaded, context), selections


def masked(selection: Any, loaded: LoadedModel, prompt_len: int) -> Kept:
    everything = torch.ones(loaded.info.kv_heads, prompt_len, dtype=torch.bool)
    masks = [everything if mask is None else mask for mask in selection.keep_masks]
    return kept_from_mask(torch.stack(masks), loaded.info.evictable_layers)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_equal_the_masked_full_cache(arch):
    """A pass over several tokens (a question), then single tokens, other ones in every row."""
    loaded = tiny_model(arch)
    token_ids = prompt_ids(PROMPT_LEN)
    fed = [prompt_ids(21, seed) for seed in range(len(METHODS))]
    passes = [slice(0, 9), slice(9, 18), slice(18, 19), slice(19, 20), slice(20, 21)]
    with torch.inference_mode():
        decoder, selections = decoder_for(prefilled(loaded, token_ids), METHODS, 21)
        actual = [decoder.feed(torch.tensor(fed)[:, part]) for part in passes]
    whole = DynamicCache(config=plain_model(arch).config)
    forward(plain_model(arch), token_ids, whole)
    for row, selection in enumerate(selections):
        cache, kept = deepcopy(whole), masked(selection, loaded, PROMPT_LEN)
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
        decoder, _ = decoder_for(prefilled(loaded, token_ids[:length]), ("full",), question + 3)
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
        steps, _ = decoder_for(result, ("full",), 6)
        together, _ = decoder_for(result, ("full",), 6)
        expected = torch.stack([steps.feed(fed[:, at : at + 1]) for at in range(6)], dim=1)
        torch.testing.assert_close(together.feed_all(fed), expected, **CLOSE)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_rows_that_leave_change_nothing_for_the_others(arch):
    """Rows of every kind leave, one after another; the others' logits stay as they were."""
    loaded = tiny_model(arch)
    token_ids = prompt_ids(PROMPT_LEN)
    with torch.inference_mode():
        result = prefilled(loaded, token_ids)
        decoder, _ = decoder_for(result, METHODS, 24)
        whole, _ = decoder_for(result, METHODS, 24)
        rows = list(range(len(METHODS)))
        for step, leaver in enumerate([3, 0, 6, 2, 7, 1, 4]):
            fed = torch.tensor([[20 + row + step] for row in range(len(METHODS))])
            torch.testing.assert_close(decoder.feed(fed[rows]), whole.feed(fed)[rows], **CLOSE)
            keep = [index for index, row in enumerate(rows) if row != leaver]
            decoder.context.keep_rows(keep)
            rows.remove(leaver)


def test_rows_in_blocks_of_queries_give_the_same(monkeypatch):
    loaded = tiny_model("gemma3")
    token_ids = prompt_ids(PROMPT_LEN)
    fed = torch.tensor([prompt_ids(17)] * len(METHODS))
    with torch.inference_mode():
        result = prefilled(loaded, token_ids)
        expected = decoder_for(result, METHODS, 17)[0].feed(fed)
        monkeypatch.setattr(partial, "MAX_LOGITS", 5_000)
        actual = decoder_for(result, METHODS, 17)[0].feed(fed)
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


def outcome(result: RunResult) -> list[tuple[Any, ...]]:
    """Everything but times, exactly."""
    rows: list[tuple[Any, ...]] = []
    for variant in result.variants:
        moved = variant.perturbation
        distances = None
        if moved is not None:
            distances = (moved.head_l1.tobytes(), moved.layer_hidden_l1.tobytes(), moved.kl)
        rows.append((variant.retained, variant.token_ids, variant.text, variant.receipt, distances))
    return rows


@pytest.mark.parametrize(("arch", "scenario"), [("llama", "context-only"), ("gemma3", "regular")])
@pytest.mark.parametrize("methods", GROUPS)
def test_a_batch_gives_each_variant_what_it_gets_alone(methods, arch, scenario):
    prefills = PrefillCache(2**30)  # the same for both; what a batch changes comes after it
    together = run(request(scenario, methods), tiny_model(arch), prefills)
    for index, name in enumerate(methods):
        (alone,) = run(request(scenario, (name,)), tiny_model(arch), prefills).variants
        in_batch = together.variants[index]
        assert alone.retained == in_batch.retained
        assert alone.token_ids == in_batch.token_ids
        assert alone.receipt == in_batch.receipt
        if alone.perturbation is None or in_batch.perturbation is None:
            assert alone.perturbation is in_batch.perturbation is None
            continue
        # matrix products of another batch size may round differently
        assert alone.perturbation.layer_hidden_l1.tolist() == pytest.approx(
            in_batch.perturbation.layer_hidden_l1.tolist(), rel=1e-3, abs=1e-3
        )


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("methods", GROUPS)
def test_the_order_of_variants_changes_nothing(methods, scenario):
    forwards = run(request(scenario, methods), tiny_model("qwen3"))
    backwards = run(request(scenario, methods[::-1]), tiny_model("qwen3"))
    for one, other in zip(forwards.variants, backwards.variants[::-1], strict=True):
        assert one.retained == other.retained
        assert one.token_ids == other.token_ids


def test_a_sequence_of_runs_equals_fresh_models():
    """Other texts, scenarios and parameters in between must not be seen in a later run."""
    arch = "gemma3"  # layers of both kinds
    used = tiny_model.__wrapped__(arch)
    asked = [
        *(request("regular", methods) for methods in GROUPS),
        request("context-only", ("adakv:safeguard=0", "full"), start=700),
        *(request("context-only", methods, start=300) for methods in GROUPS),
        request("regular", ("pyramidkv+critical:sinks=3,beta=2",), start=1200),
        request("regular", GROUPS[0]),
    ]
    in_sequence = [outcome(run(one, used)) for one in asked]
    fresh = [outcome(run(one, tiny_model.__wrapped__(arch))) for one in asked[:-1]]
    assert in_sequence == [*fresh, fresh[0]]


@pytest.mark.parametrize("methods", GROUPS)
def test_a_cancelled_run_leaves_nothing_behind(methods):
    loaded = tiny_model.__wrapped__("llama")
    asked = request("regular", methods)
    before = outcome(run(asked, loaded))
    events = compare(asked, loaded)
    for _ in range(6):
        next(events)
    events.close()
    assert outcome(run(asked, loaded)) == before


@pytest.mark.parametrize("methods", GROUPS)
def test_a_row_that_meets_its_end_token_stops_and_the_others_go_on(methods):
    loaded = tiny_model("llama")
    asked = request("context-only", methods)
    free = run(asked, loaded).variants
    end = next(
        token
        for token in free[1].token_ids[1:]
        if any(token not in variant.token_ids for variant in free)
    )
    stopping = replace(loaded, eos_token_ids=frozenset({end}))
    for variant, whole in zip(
        run(replace(asked, ignore_eos=False), stopping).variants, free, strict=True
    ):
        ids = list(whole.token_ids)
        cut = ids.index(end) + 1 if end in ids else len(ids)
        assert list(variant.token_ids) == ids[:cut]
        assert variant.stopped == ("eos" if end in ids else "length")
