"""The contract of methods holds for any parts that fit: sampled by a seed from the registry."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from transformers import DynamicCache

from ckv_core.compare.choose import row_plan
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.policy_row import PolicyRow
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import prompt_rows
from ckv_core.engine.select import select
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, POLICIES, SELECTORS, STORES
from ckv_core.methods.base import MethodRegistry
from ckv_core.request.variants import VariantSpec
from tests.ckv_core.compare.test_decode_equality import (
    BUDGET,
    CLOSE,
    PROMPT_LEN,
    masked,
    prefilled,
)
from tests.factories.models import plain_model, prompt_ids, tiny_model
from tests.reference.forward import forward

pytestmark = pytest.mark.slow

COUNT, STEPS = 40, 13
# Small enough for a short prompt; no observer's.
SMALL = {"window": 8, "lag": 16, "history": 20, "buffer": 8, "every": 12, "to": 9, "chunk": 5}
SMALL |= {"rolling": "on", "positions": "cache", "budget": str(BUDGET), "residual": 8}


def _parts(kind: str) -> list:
    found = {part.name: part for each in METHODS if (part := getattr(each, kind)) is not None}
    return list(found.values())


def combinations() -> list[VariantSpec]:
    """COUNT of all that fit; the same ones in each session."""
    model = METHODS.get("snapkv")
    selectors = [*_parts("selector"), *SELECTORS.values()]
    policies = [None, *_parts("policy"), *POLICIES.values()]
    drawn = list(
        product(_parts("scorer"), _parts("budget_rule"), selectors, policies, ["plain", *STORES])
    )
    random.Random(14).shuffle(drawn)
    found: list[VariantSpec] = []
    for scorer, rule, selector, policy, store in drawn:
        method = replace(
            model, name="sampled", scorer=scorer, budget_rule=rule, selector=selector, policy=policy
        )
        if not method.misfit() and len(found) < COUNT:
            of_store = STORES[store].parameters if store != "plain" else ()
            parameters = {
                parameter.name: parameter.default
                for parameter in (*method.parameters().values(), *of_store)
            }
            params = {key: SMALL.get(key, value) for key, value in parameters.items()} | {
                "store": store
            }
            found.append(VariantSpec(method, selector, params))
    return found


SAMPLED = combinations()


def _name(spec: VariantSpec) -> str:
    return " ".join(part.name for part in spec.parts)


@pytest.fixture(scope="module")
def prompt() -> Prefill:
    loaded = tiny_model("llama")
    return prefilled(loaded, prompt_ids(PROMPT_LEN))


def test_the_sample_has_every_kind_of_part():
    for kind in range(4):
        assert len({spec.parts[kind].name for spec in SAMPLED}) > 2, kind
    assert {spec.store.name for spec in SAMPLED} == {"plain", *STORES}


@pytest.mark.parametrize("spec", SAMPLED, ids=_name)
def test_totals_are_exact_protected_entries_stay_and_decoding_goes_on(spec, prompt):
    """The same again; without a policy, in a plain store, logits of the masked full cache."""
    loaded = prompt.loaded
    with torch.inference_mode():
        selection = select(spec, prompt, BUDGET)
        kept = torch.stack([mask for mask in selection.keep_masks if mask is not None])
        again = torch.stack([m for m in select(spec, prompt, BUDGET).keep_masks if m is not None])
        rows = prompt_rows(prompt, [row_plan(spec, selection, prompt)])
        decoder = Decoder(loaded, DecodeContext(loaded, rows.start(STEPS), lambda: False))
        fed = prompt_ids(STEPS, 9)
        logits = torch.stack([decoder.feed(torch.tensor([[token]]))[0] for token in fed])
    assert torch.equal(kept, again)
    assert kept.sum() == loaded.info.layers * loaded.info.kv_heads * BUDGET
    for part in spec.protected.values():
        assert kept[..., part].all()
    assert logits.isfinite().all()
    (row,) = decoder.context.parts
    if spec.policy is None:
        if spec.store.is_plain:
            cache = DynamicCache(config=plain_model("llama").config)
            forward(plain_model("llama"), prompt_ids(PROMPT_LEN), cache)
            held = masked(selection, loaded, PROMPT_LEN)
            expected = [forward(plain_model("llama"), [token], cache, kept=held) for token in fed]
            torch.testing.assert_close(logits, torch.stack(expected).view_as(logits), **CLOSE)
        return
    assert isinstance(row, PolicyRow)
    assert row.held[0][0] == kept.sum()
    assert row.held[-1][0] == sum(layer.entries for layer in row.layers)


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
