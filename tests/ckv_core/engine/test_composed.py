"""Scores of one method with the budget rule and the selector of another."""

import random

import pytest
import torch

from ckv_core.engine.layer_view import PromptLayer
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.select import select
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, SELECTORS
from ckv_core.methods.base import budget_rules, plain_selectors
from ckv_core.request.variants import VariantSpec
from tests.ckv_core.compare.test_decode_equality import prefilled
from tests.factories.models import prompt_ids, tiny_model
from tests.reference.budgets import adaptive_heads, pyramid_layers
from tests.reference.selection import top_k

TOKENS, BUDGET = 117, 50
SMALL = {"window": 8, "lag": 12, "beta": 3}


@pytest.fixture(scope="module")
def processed() -> Prefill:
    return prefilled(tiny_model("llama"), prompt_ids(TOKENS, seed=7))


def small(text: str) -> VariantSpec:
    """With a small window and the like, where it takes them."""
    params = VariantSpec.parse(text).params
    own = [f"{key}={value}" for key, value in SMALL.items() if key in params]
    joint = "," if ":" in text else ":"
    return VariantSpec.parse(f"{text}{joint}{','.join([*own, f'budget={BUDGET}'])}")


def all_compositions() -> list[str]:
    """Every method, budget rule and selector, with and without a '+', whether they fit or not."""
    evicting = [method.name for method in METHODS if method.evicts]
    words = ["", *(f"+{word}" for word in SELECTORS)]
    return [
        f"{method}{word}:rule={rule},select={selector}"
        for method in evicting
        for rule in budget_rules()
        for selector in plain_selectors()
        for word in words
    ]


def composed(text: str) -> VariantSpec | str:
    """The variant, or why it is none."""
    try:
        return small(text)
    except ConfigError as error:
        return str(error)


def test_what_fits_keeps_its_exact_total_and_what_does_not_says_why(processed):
    found = [composed(text) for text in random.Random(14).sample(all_compositions(), 400)]
    reasons = [each for each in found if isinstance(each, str)]
    fit = [each for each in found if isinstance(each, VariantSpec)]
    assert min(len(reasons), len(fit)) > 50
    labels = tuple(method.label for method in METHODS)
    assert all(each.startswith(labels) and each.count(".") == 1 for each in reasons)
    for spec in fit:
        with torch.inference_mode():
            masks = select(spec, processed, BUDGET).keep_masks
        heads = sum(len(mask) for mask in masks)
        assert sum(int(mask.sum()) for mask in masks) == heads * BUDGET, spec.spec
        always = [at for place in spec.always_kept(TOKENS) for at in place]
        assert all(mask[:, always].all() for mask in masks), spec.spec


@pytest.mark.parametrize("name", ["knorm", "keydiff", "observed_attention"])
def test_another_methods_budgets_are_those_of_the_literal_rule(processed, name):
    spec = small(f"{name}:rule=pyramid")
    with torch.inference_mode():
        masks = select(spec, processed, BUDGET).keep_masks
    expected = pyramid_layers(BUDGET, len(masks), 3, TOKENS)
    for layer, (mask, count) in enumerate(zip(masks, expected, strict=True)):
        scores = spec.scorer.scores(PromptLayer(processed, layer), spec.params).double().tolist()
        kept = [set(row.nonzero()[:, 0].tolist()) for row in mask]
        assert kept == [set(top_k(row, count)) for row in scores]


def test_heads_compete_by_another_methods_scores(processed):
    spec = small("observed_attention:rule=adaptive,safeguard=0.25")
    with torch.inference_mode():
        masks = select(spec, processed, BUDGET).keep_masks
    for layer, mask in enumerate(masks):
        scores = spec.scorer.scores(PromptLayer(processed, layer), spec.params).double().tolist()
        assert mask.sum(-1).tolist() == adaptive_heads(scores, BUDGET, 0.25)


def test_whole_chunks_of_another_methods_scores(processed):
    spec = small("knorm:select=chunks,chunk=10")
    with torch.inference_mode():
        masks = select(spec, processed, BUDGET).keep_masks
    scores = spec.scorer.scores(PromptLayer(processed, 0), spec.params).double()
    for row, mask in zip(scores, masks[0], strict=True):
        chunks = [range(at, min(at + 10, TOKENS)) for at in range(0, TOKENS, 10)]
        means = [float(row[chunk.start : chunk.stop].float().mean()) for chunk in chunks]
        best = [at for chunk in top_k(means, len(chunks)) for at in chunks[chunk]]
        assert set(mask.nonzero()[:, 0].tolist()) == set(best[:BUDGET])
