"""Parts of several methods in one, by SPEC and any that fit: the contract of methods holds."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.choose import row_plan
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import PolicyRow
from ckv_core.engine.select import select
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, POLICIES, SELECTORS, STORES
from ckv_core.methods.base import MethodRegistry, budget_rules, plain_selectors
from ckv_core.records.variants import VariantSpec
from tests.factories.decoding import CLOSE, decoder_of, make_tables, masked, prefilled
from tests.factories.models import plain_model, prompt_ids, tiny_model
from tests.reference.budgets import adaptive_heads, pyramid_layers
from tests.reference.forward import forward
from tests.reference.selection import top_k

TOKENS, BUDGET, STEPS = 117, 50, 13
# Small enough for a short prompt; no observer's.
SMALL = {"window": 8, "lag": 12, "beta": 3, "history": 20, "buffer": 8, "every": 12, "to": 9}
SMALL |= {"chunk": 5, "rolling": "on", "positions": "cache", "residual": 8}


@pytest.fixture(scope="module")
def processed() -> Prefill:
    return prefilled(tiny_model("llama"), prompt_ids(TOKENS, seed=7))


# --- by SPEC: scores of one method with the budget rule and the selector of another ----------


def small(text: str) -> VariantSpec:
    """With a small window and the like, where it takes them."""
    params = VariantSpec.parse(text).params
    own = [f"{key}={SMALL[key]}" for key in ("window", "lag", "beta") if key in params]
    joint = "," if ":" in text else ":"
    return VariantSpec.parse(f"{text}{joint}{','.join([*own, f'budget={BUDGET}'])}")


def all_compositions() -> list[str]:
    """Every method, budget rule and selector, with and without a '+', whether they fit or not."""
    words = ["", *(f"+{word}" for word in SELECTORS)]
    evicting = [method.name for method in METHODS if method.scorer]
    parts = product(evicting, words, budget_rules(), plain_selectors())
    return [f"{method}{word}:rule={rule},select={own}" for method, word, rule, own in parts]


def composed(text: str) -> VariantSpec | str:
    """The variant, or why it is none."""
    try:
        return small(text)
    except ConfigError as error:
        return str(error)


def kept_by(spec: VariantSpec, processed: Prefill) -> tuple[Tensor, ...]:
    """Of each layer, with the total and the protected entries that each variant must have."""
    make_tables(processed.loaded, [spec])
    with torch.inference_mode():
        masks = select(spec, processed, BUDGET).keep_masks
    kept = sum(int(mask.sum()) for mask in masks)
    total = sum(map(len, masks)) * spec.holds(BUDGET, TOKENS)
    assert kept == total or (spec.at_most and kept < total), spec.spec
    always = [at for place in spec.always_kept(TOKENS) for at in place]
    assert all(mask[:, always].all() for mask in masks), spec.spec
    return masks


def scored(spec: VariantSpec, processed: Prefill, layer: int) -> Tensor:
    return spec.scorer.scores(PromptLayer(processed, layer), spec.params).double()


def test_what_fits_keeps_its_exact_total_and_what_does_not_says_why(processed):
    found = [composed(text) for text in random.Random(14).sample(all_compositions(), 400)]
    reasons = [each for each in found if isinstance(each, str)]
    fit = [each for each in found if isinstance(each, VariantSpec)]
    assert min(len(reasons), len(fit)) > 50
    labels = [method.label for method in METHODS]
    assert all(any(label in each for label in labels) for each in reasons)
    assert all(each.count(".") == 1 for each in reasons)
    for spec in fit:
        kept_by(spec, processed)


@pytest.mark.parametrize("name", ["knorm", "keydiff", "observed_attention"])
def test_another_methods_budgets_are_those_of_the_literal_rule(processed, name):
    spec = small(f"{name}:rule=pyramid")
    masks = kept_by(spec, processed)
    expected = pyramid_layers(BUDGET, len(masks), 3, TOKENS)
    for layer, (mask, count) in enumerate(zip(masks, expected, strict=True)):
        kept = [set(row.nonzero()[:, 0].tolist()) for row in mask]
        assert kept == [set(top_k(row, count)) for row in scored(spec, processed, layer).tolist()]


def test_heads_compete_by_another_methods_scores(processed):
    spec = small("observed_attention:rule=adaptive,safeguard=0.25")
    for layer, mask in enumerate(kept_by(spec, processed)):
        scores = scored(spec, processed, layer).tolist()
        assert mask.sum(-1).tolist() == adaptive_heads(scores, BUDGET, 0.25)


def test_whole_chunks_of_another_methods_scores(processed):
    spec = small("knorm:select=chunks,chunk=10")
    mask = kept_by(spec, processed)[0]
    for row, kept in zip(scored(spec, processed, 0), mask, strict=True):
        chunks = [range(at, min(at + 10, TOKENS)) for at in range(0, TOKENS, 10)]
        means = [float(row[chunk.start : chunk.stop].float().mean()) for chunk in chunks]
        best = [at for chunk in top_k(means, len(chunks)) for at in chunks[chunk]]
        assert set(kept.nonzero()[:, 0].tolist()) == set(best[:BUDGET])


# --- any that fit: sampled by a seed from the registry ---------------------------------------


def parts_of(kind: str) -> list:
    """Parts of the methods that evict; those of Quest combine with no others."""
    parts = [getattr(method, kind) for method in METHODS if method.scorer]
    return list({part.name: part for part in parts if part is not None}.values())


def combinations(count: int) -> list[VariantSpec]:
    """So many of all that fit; the same ones in each session."""
    selectors = [*parts_of("selector"), *SELECTORS.values()]
    policies = [None, *parts_of("policy"), *POLICIES.values()]
    stores = ["plain", *STORES]
    drawn = [*product(parts_of("scorer"), parts_of("budget_rule"), selectors, policies, stores)]
    random.Random(14).shuffle(drawn)
    found: list[VariantSpec] = []
    for scorer, rule, selector, policy, store in drawn:
        parts = {"scorer": scorer, "budget_rule": rule, "selector": selector, "policy": policy}
        method = replace(METHODS.get("snapkv"), name="sampled", **parts)
        if not method.misfit() and len(found) < count:
            of_store = STORES[store].parameters if store != "plain" else ()
            parameters = (*method.parameters().values(), *of_store)
            params = {each.name: SMALL.get(each.name, each.default) for each in parameters}
            params |= {"store": store, "budget": str(BUDGET)}
            found.append(VariantSpec(method, selector, params))
    return found


SAMPLED = combinations(40)


def test_the_sample_has_every_kind_of_part():
    for kind in range(4):
        assert len({spec.parts[kind].name for spec in SAMPLED}) > 2, kind
    assert {spec.store.name for spec in SAMPLED} == {"plain", *STORES}


@pytest.mark.slow
@pytest.mark.parametrize("spec", SAMPLED, ids=lambda s: " ".join(part.name for part in s.parts))
def test_any_parts_decode_and_without_policy_and_store_as_the_masked_full_cache(spec, processed):
    loaded, fed = processed.loaded, prompt_ids(STEPS, 9)
    kept = kept_by(spec, processed)
    with torch.inference_mode():
        selection = select(spec, processed, BUDGET)
        decoder = decoder_of(processed, [row_plan(spec, selection, processed)], STEPS)
        logits = torch.cat([decoder.feed(torch.tensor([[token]])) for token in fed])
    assert torch.equal(torch.stack(kept), torch.stack(selection.keep_masks)), "the same again"
    assert logits.isfinite().all()
    (row,) = decoder.context.parts
    if spec.policy is not None:
        assert isinstance(row, PolicyRow)
        assert row.held[0][0] == sum(int(mask.sum()) for mask in kept)
        assert row.held[-1][0] == sum(layer.entries for layer in row.layers)
    elif spec.store.is_plain:
        plain = plain_model("llama")
        cache = DynamicCache(config=plain.config)
        forward(plain, prompt_ids(TOKENS, seed=7), cache)
        held = masked(kept, loaded, TOKENS)
        expected = [forward(plain, [token], cache, kept=held) for token in fed]
        torch.testing.assert_close(logits, torch.stack(expected).view_as(logits), **CLOSE)


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("knorm", {"budget_rule": "adakv"}, "'adaptive' .* cannot be compared between heads"),
        ("keydiff", {"budget_rule": "layer_defensivekv"}, "cannot be compared between heads"),
        ("expected_attention", {"budget_rule": "cake"}, "does not take 'window'"),
        ("snapkv", {"selector": "lagkv"}, "'partitions' .* does not take 'lag'"),
        ("adakv", {"policy": "tova"}, "'adaptive' gives heads different budgets"),
        ("snapkv", {"policy": "scissorhands"}, "does not take 'history' and 'recent'"),
        ("random", {"selector": "defensivekv"}, "has no observation window"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_with_the_reason(method, changes, said):
    parts = {kind: getattr(METHODS.get(name), kind) for kind, name in changes.items()}
    with pytest.raises(ConfigError, match=said):
        MethodRegistry().register(replace(METHODS.get(method), **parts))


@pytest.mark.parametrize("method", [method.name for method in METHODS if method.scorer])
def test_a_method_asks_for_as_many_last_queries_as_it_looks_at(method, processed, monkeypatch):
    seen = {0}
    monkeypatch.setattr(
        PromptLayer,
        "window_queries",
        lambda view, window: seen.add(window) or view._queries[:, -window:],
    )
    processed.memo.clear()
    spec = small(method)
    kept_by(spec, processed)
    assert max(seen) == spec.queries
