"""The engine against the slow reference: tiny models in every method and parameter."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ckv_core.compare.compare import compare
from ckv_core.request.compare_request import SCENARIOS, CompareRequest, Scenario
from ckv_core.results.events import RunResult
from tests.factories.events import folded
from tests.factories.models import ARCHITECTURES, plain_model, tiny_model
from tests.reference.checks import (
    L1_TOLERANCE,
    MIN_AGREEMENT,
    assert_heads_close,
    kept_from_mask,
)
from tests.reference.comparison import Reference
from tests.reference.forward import Kept, evictable_layers
from tests.reference.keep import METHODS, agreement, entries, kept_sets
from tests.reference.perturbation import head_l1, hidden_l1, kl_divergence, output_sizes
from tests.reference.prompt import build_prompt
from tests.reference.report import report

# Every parameter away from its default at least once, in company and alone.
PARAMETERS = (
    "snapkv:preset=kvpress,window=16",
    "snapkv+critical:preset=kvpress,window=16",
    "adakv+critical:preset=kvpress,window=20,sinks=3",
    "snapkv+critical:alpha=0,window=8,kernel=1",
    "snapkv+critical:alpha=1,window=8,pool=none",
    "snapkv+critical:alpha=0.57,norm=off,group=max",
    "snapkv+critical:stage2=pooled,group=max,kernel=3",
    "snapkv+critical:product=group,epsilon=0.01",
    "snapkv+critical:product=group,group=max,sinks=5",
    "pyramidkv+critical:beta=1.5,sinks=2,window=9,budget=13",
    "pyramidkv:beta=3,budget=70%",
    "adakv:safeguard=0,window=5,budget=25",
    "adakv+critical:safeguard=1,sinks=1,pool=avg,kernel=9",
    "adakv:budget=33",
    "streaming_llm:sinks=0,budget=7",
    "streaming_llm:sinks=7,budget=7",
    "snapkv:budget=32",
)
TEXT = report()[2000:2400]


def run(request: CompareRequest, arch: str) -> RunResult:
    return folded(compare(request, tiny_model(arch)))


@cache
def tiny_request(scenario: Scenario, variants: tuple[str, ...]) -> CompareRequest:
    return CompareRequest(
        context=TEXT,
        question="Who counted the vessels?",
        scenario=scenario,
        variants=variants,
        defaults={"budget": "48"},
        max_new_tokens=12,
        ignore_eos=True,
    )


def tiny_reference(arch: str, result: RunResult, request: CompareRequest) -> Reference:
    prompt = build_prompt(
        tiny_model(arch).tokenizer, request.context, request.question, request.scenario
    )
    params = [dict(variant.params) for variant in result.variants]
    return Reference.prefill(plain_model(arch), prompt, params)


def engine_kept(result: RunResult, index: int) -> Kept | None:
    retained = result.variants[index].retained
    if retained is None:
        return None
    return kept_from_mask(retained.mask(), result.model.evictable_layers)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", [*ARCHITECTURES, "mha"])
def test_tiny_models_agree_with_the_reference(arch: str, scenario: Scenario) -> None:
    request = tiny_request(scenario, METHODS)
    check_all(arch, request)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "scenario"),
    [
        ("llama", "regular"),
        ("qwen3", "context-only"),
        ("gemma3", "context-only"),
        ("mha", "regular"),
    ],
)
def test_every_parameter_agrees_with_the_reference(arch: str, scenario: Scenario) -> None:
    check_all(arch, tiny_request(scenario, ("full", *PARAMETERS[:8])))
    check_all(arch, replace(tiny_request(scenario, PARAMETERS[8:]), max_new_tokens=1))


def check_all(arch: str, request: CompareRequest) -> None:
    """Prompt, kept sets, totals, tokens and all distances of one run."""
    result = run(request, arch)
    assert result.finished
    reference = tiny_reference(arch, result, request)
    assert list(result.prompt.token_ids) == reference.prompt.token_ids
    assert result.prompt.compressed_tokens == reference.prompt.compressed
    assert list(result.model.evictable_layers) == evictable_layers(plain_model(arch))
    _, logits = reference.read_question(None)
    token = int(logits.argmax())
    full_tap, full_cache, full_logits = reference.first_step(None, token)
    sizes = output_sizes(reference.model, full_tap, full_cache)
    for index, variant in enumerate(result.variants):
        kept = engine_kept(result, index)
        tokens, _ = reference.generate(kept, request.max_new_tokens)
        assert list(variant.token_ids) == tokens, variant.spec
        if kept is None:
            continue
        check_kept(reference, result, index)
        measured = variant.perturbation
        expected = head_l1(reference.model, full_tap, full_cache, kept)
        assert_heads_close(measured.head_l1.tolist(), expected, sizes, L1_TOLERANCE)
        tap, _, step_logits = reference.first_step(kept, token)
        assert measured.layer_hidden_l1.tolist() == pytest.approx(
            hidden_l1(full_tap, tap), rel=L1_TOLERANCE, abs=1e-3
        )
        # KL is a difference of float32 log-probabilities
        expected_kl = kl_divergence(full_logits, step_logits)
        assert measured.kl == pytest.approx(expected_kl, rel=L1_TOLERANCE, abs=1e-5)
        if variant.critical:
            base = kept_sets(reference.prefilled, variant.method, False, dict(variant.params))
            assert_heads_close(
                measured.base_head_l1.tolist(),
                head_l1(reference.model, full_tap, full_cache, base),
                sizes,
                L1_TOLERANCE,
            )


def check_kept(reference: Reference, result: RunResult, index: int) -> None:
    """Kept entries against the reference's own choice; exact total; receipt."""
    variant, model, prompt = result.variants[index], result.model, result.prompt
    kept = engine_kept(result, index)
    params: dict[str, Any] = dict(variant.params)
    expected = kept_sets(reference.prefilled, variant.method, variant.critical, params)
    assert agreement(expected, kept) >= MIN_AGREEMENT, variant.spec
    positions = prompt.compressed_tokens
    total = len(model.evictable_layers) * model.kv_heads * min(params["budget"], positions)
    assert entries(kept) == entries(expected) == total
    assert variant.receipt.retained_entries == variant.receipt.requested_entries == total
    assert variant.receipt.budget_tokens == params["budget"]
    # float32 keys and values, nothing else: what an entry costs is what the receipt says
    assert variant.receipt.cache_bytes == total * 2 * model.head_dim * 4
    assert variant.receipt.full_cache_bytes == (
        len(model.evictable_layers) * model.kv_heads * positions * 2 * model.head_dim * 4
    )
    whole = [layer for layer in range(model.layers) if layer not in model.evictable_layers]
    assert variant.retained.mask()[whole].all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_budget_of_everything_evicts_nothing_and_says_so(scenario: Scenario) -> None:
    variants = ("full", "snapkv+critical:budget=5000", "adakv:budget=100%")
    result = run(tiny_request(scenario, variants), "llama")
    for variant in result.variants[1:]:
        assert variant.retained.mask().all()
        assert variant.token_ids == result.variants[0].token_ids
        # the same sums in another order: float32 roundings of a residual stream of length 64
        assert variant.perturbation.layer_hidden_l1.max() < 1e-2
        assert variant.perturbation.head_l1.max() < 1e-3
        assert variant.receipt.warnings
