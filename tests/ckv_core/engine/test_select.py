"""Laws of selecting many variants together, of stage 1 alone, and of an alpha per head."""

import math
from fractions import Fraction

import pytest
import torch

from ckv_core.engine.prefill import LayerStates, Needs, Prefill, prefill
from ckv_core.engine.select import select, select_all, stage_one
from ckv_core.errors import RunCancelledError
from ckv_core.methods.parts.critical_auto import CRITICAL_AUTO
from ckv_core.request.variants import VariantSpec
from tests.factories.models import drained, prompt_ids, tiny_model

BUDGET, TOKENS = 40, 120
SPECS = (
    "full",
    "streaming_llm:sinks=4",
    "snapkv:window=8",
    "snapkv+critical:window=8,sinks=2,alpha=0.3",
    "snapkv+critical_auto:window=8,sinks=2",
    "adakv+critical_auto:window=8",
    "adakv+critical:window=16,stage2=pooled",
    "pyramidkv+critical:window=8,pool=avg,norm=off",
    "pyramidkv:window=8,beta=3",
)


@pytest.fixture(scope="module")
def processed() -> Prefill:
    with torch.inference_mode():
        return drained(prefill(tiny_model("llama"), prompt_ids(TOKENS), Needs(16), lambda: False))


def specs() -> list[VariantSpec]:
    return [VariantSpec.parse(text, {"budget": str(BUDGET)}) for text in SPECS]


def same(one: tuple, other: tuple) -> bool:
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_variants_selected_together_keep_what_each_keeps_alone(processed):
    budgets = [TOKENS if spec.name == "full" else BUDGET for spec in specs()]
    together = select_all(specs(), processed, budgets)
    for spec, budget, found in zip(specs(), budgets, together, strict=True):
        alone = select(spec, processed, budget)
        assert same(found.keep_masks, alone.keep_masks), spec.spec
        assert ("head_alpha" in found.arrays) == (spec.selector is CRITICAL_AUTO)
        if spec.name != "full":
            kept = sum(int(mask.sum()) for mask in found.keep_masks)
            assert kept == len(found.keep_masks) * found.keep_masks[0].shape[0] * BUDGET


@pytest.mark.parametrize("text", [text for text in SPECS if "critical" in text])
def test_stage_one_is_the_quota_and_part_of_what_is_kept(processed, text):
    spec = VariantSpec.parse(text, {"budget": str(BUDGET)})
    selection = select(spec, processed, BUDGET)
    protected = spec.protected_tokens
    for place, (stage, mask) in enumerate(
        zip(stage_one(spec, processed, selection), selection.keep_masks, strict=True)
    ):
        assert not bool((stage & ~mask).any())
        for head in range(mask.shape[0]):
            alpha = Fraction(str(spec.params.get("alpha", 0)))
            if selection.arrays:
                alpha = Fraction(round(float(selection.arrays["head_alpha"][place, head]) * 20), 20)
            quota = math.floor(alpha * (int(mask[head].sum()) - protected))
            assert int(stage[head].sum()) == protected + quota


def test_stage_one_of_a_plain_variant_is_all_that_it_keeps(processed):
    spec = VariantSpec.parse("snapkv:window=8,budget=40")
    selection = select(spec, processed, BUDGET)
    assert same(tuple(stage_one(spec, processed, selection)), selection.keep_masks)


def test_each_head_keeps_what_its_own_alpha_would_keep(processed):
    parameters = (
        "window=8,stage2=pooled,pool=avg,budget=40"  # raw scores would give alpha 0 everywhere
    )
    auto = VariantSpec.parse(f"snapkv+critical_auto:{parameters}")
    found = select(auto, processed, BUDGET)
    alphas = found.arrays["head_alpha"]
    assert alphas.unique().numel() > 1
    for place, row in enumerate(alphas):
        for head, alpha in enumerate(row.tolist()):
            fixed = f"snapkv+critical:{parameters},alpha={round(alpha * 20) / 20}"
            alone = select(VariantSpec.parse(fixed), processed, BUDGET)
            assert torch.equal(found.keep_masks[place][head], alone.keep_masks[place][head])


def test_a_budget_that_the_protected_tokens_use_up_is_warned_of(processed):
    for text in ("snapkv:window=38,sinks=2", "adakv+critical:window=40", "streaming_llm:sinks=40"):
        spec = VariantSpec.parse(text, {"budget": str(BUDGET)})
        selection = select(spec, processed, BUDGET)
        (warning,) = selection.warnings
        assert f"holds only what is always kept ({spec.protected_text})" in warning
        assert all(
            mask is not None and bool((mask.sum(-1) == BUDGET).all())
            for mask in selection.keep_masks
        )
    for text in ("snapkv:window=37,sinks=2", "adakv+critical:window=39", "streaming_llm:sinks=39"):
        spec = VariantSpec.parse(text, {"budget": str(BUDGET)})
        assert select(spec, processed, BUDGET).warnings == ()


def test_equal_warnings_are_the_same_sentence_in_every_variant(processed):
    """Readers are told each sentence once, after the variants that have it."""
    specs = [VariantSpec.parse(f"{name}:budget=40,window=40") for name in ("snapkv", "adakv")]
    assert len({found.warnings for found in select_all(specs, processed, [BUDGET] * 2)}) == 1


PARAMETERS = {
    "window": ("8", "16"),
    "kernel": ("3", "9"),
    "pool": ("max", "avg"),
    "group": ("mean", "max"),
    "sinks": ("0", "4"),
    "stage2": ("raw", "pooled"),
    "norm": ("on", "off"),
    "product": ("head", "group"),
    "epsilon": ("0", "0.01"),
}


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_orders_kept_for_one_score_are_not_taken_for_another(parameter):
    """Two variants that differ in one parameter of the score, on one prefill and on one each."""
    generator = torch.Generator().manual_seed(3)
    loaded = tiny_model("llama")
    info = loaded.info

    def states() -> LayerStates:
        keys, values = torch.randn(2, info.kv_heads, TOKENS, info.head_dim, generator=generator)
        queries = torch.randn(info.query_heads, 100, info.head_dim, generator=generator)
        return LayerStates(2 * keys, values, 2 * queries, 0.5)

    layers = [states() for _ in range(info.layers)]
    shared = Prefill(loaded, layers, torch.zeros(3))
    for method in ("adakv+critical", "snapkv+critical_auto"):
        given = {"window": "8", "kernel": "3", "budget": str(BUDGET)}
        pair = [
            VariantSpec.parse(method, given | {parameter: value}) for value in PARAMETERS[parameter]
        ]
        found = [select(spec, shared, BUDGET) for spec in pair]
        for spec, each in zip(pair, found, strict=True):
            alone = select(spec, Prefill(loaded, layers, torch.zeros(3)), BUDGET)
            assert same(each.keep_masks, alone.keep_masks)
        if method == "adakv+critical":
            assert not same(found[0].keep_masks, found[1].keep_masks), (
                "the parameter changes something"
            )


def test_every_mask_lies_on_the_device_of_its_layer():
    """A model may be spread over several GPUs; `meta` stands for another one."""
    loaded = tiny_model("llama")

    def states(device: str) -> LayerStates:
        entries = torch.zeros(2, TOKENS, 16, device=device)
        return LayerStates(entries, entries, torch.zeros(4, 100, 16, device=device), 0.25)

    layers = [states(device) for device in ("cpu", "meta", "meta")]
    spread = Prefill(loaded, layers, torch.zeros(3))
    found = select(VariantSpec.parse("streaming_llm:budget=16"), spread, 16)
    assert [mask.device for mask in found.keep_masks] == [each.keys.device for each in layers]


def test_selection_can_be_cancelled(processed):
    asked: list[bool] = []

    def should_stop() -> bool:
        asked.append(True)
        return len(asked) == 3

    budgets = [BUDGET] * len(SPECS)
    with pytest.raises(RunCancelledError):
        select_all(specs(), processed, budgets, should_stop=should_stop)
    assert len(asked) == 3
