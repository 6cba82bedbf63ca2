"""Laws of selecting: many variants together, stage 1 alone, an alpha per head, layouts."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckv_core.engine.cache.slots import Keep, compact
from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.prefill import LayerStates, Memo, Prefill
from ckv_core.engine.rows import PromptRows, RowPlan
from ckv_core.engine.select import Selection, receipt, select, select_all, stage_one
from ckv_core.errors import EngineError, RunCancelledError
from ckv_core.methods.parts.critical import CRITICAL, CRITICAL_AUTO, first_stage, second_score
from ckv_core.records.variants import VariantSpec
from tests.factories.decoding import prefilled
from tests.factories.models import SPECS as REGISTERED
from tests.factories.models import prompt_ids, tiny_model
from tests.reference.keep import keep_layer, keep_pages

BUDGET, TOKENS = 40, 117  # neither pages nor partitions come out even
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
    return prefilled(tiny_model("llama"), prompt_ids(TOKENS, seed=7))


def parsed(*texts: str) -> list[VariantSpec]:
    return [VariantSpec.parse(text, {"budget": str(BUDGET)}) for text in texts]


def same(one: tuple, other: tuple) -> bool:
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_variants_selected_together_keep_what_each_keeps_alone(processed):
    budgets = [TOKENS, *[BUDGET] * len(SPECS[1:])]
    together = select_all(parsed(*SPECS), processed, budgets)
    for spec, budget, found in zip(parsed(*SPECS), budgets, together, strict=True):
        assert same(found.keep_masks, select(spec, processed, budget).keep_masks), spec.spec
        assert ("head_alpha" in found.arrays) == (spec.selector is CRITICAL_AUTO)


@pytest.mark.parametrize("text", SPECS[1:])
def test_stage_one_is_the_quota_and_part_of_what_is_kept(processed, text):
    """Of a plain variant it is all that is kept."""
    (spec,) = parsed(text)
    selection = select(spec, processed, BUDGET)
    protected = spec.protected_tokens
    stages = stage_one(spec, processed, selection)
    for place, (stage, mask) in enumerate(zip(stages, selection.keep_masks, strict=True)):
        assert not (stage & ~mask).any()
        for head in range(mask.shape[0]):
            alpha = Fraction(str(spec.params.get("alpha", 1)))
            if selection.arrays:
                alpha = Fraction(round(float(selection.arrays["head_alpha"][place, head]) * 20), 20)
            quota = math.floor(alpha * (int(mask[head].sum()) - protected))
            assert int(stage[head].sum()) == protected + quota


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("snapkv:sinks=2,window={}", 38),
        ("adakv+critical:window={}", 40),
        ("streaming_llm:sinks={}", 40),
    ],
)
def test_a_budget_that_the_protected_tokens_use_up_is_warned_of(processed, text, most):
    full, spare = parsed(text.format(most), text.format(most - 1))
    (warning,) = select(full, processed, BUDGET).warnings
    assert f"holds only what is always kept ({full.protected_text})" in warning
    assert select(spare, processed, BUDGET).warnings == ()


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
def test_orders_kept_for_one_score_are_not_taken_for_another(processed, parameter):
    """Two variants that differ in one parameter of the score, on one prefill and on one each."""
    shared = replace(processed, memo=Memo())
    for method in ("adakv+critical", "snapkv+critical_auto"):
        given = {"window": "8", "kernel": "3", "budget": str(BUDGET)}
        pair = [
            VariantSpec.parse(method, given | {parameter: value}) for value in PARAMETERS[parameter]
        ]
        found = [select(spec, shared, BUDGET).keep_masks for spec in pair]
        for spec, masks in zip(pair, found, strict=True):
            alone = select(spec, replace(processed, memo=Memo()), BUDGET)
            assert same(masks, alone.keep_masks)
        if method == "adakv+critical":
            assert not same(*found), "the parameter changes something"


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
    answers = iter([False, False, True])
    with pytest.raises(RunCancelledError):
        select_all(parsed(*SPECS), processed, [BUDGET] * len(SPECS), should_stop=answers.__next__)
    assert not [*answers]


def test_another_number_of_kept_entries_than_asked_for_fails():
    model = tiny_model("llama").info
    keys = torch.zeros(model.kv_heads, 10, 4)
    mask = torch.zeros(model.kv_heads, 10, dtype=torch.bool)
    mask[:, :5] = True
    right = Selection(5, (mask,) * model.layers, ())
    plan, layers = RowPlan([Keep(mask)] * model.layers), [compact(keys, keys, [Keep(mask)])]
    rows = PromptRows(10, [plan], [None] * model.layers, [0], layers * model.layers, {})
    assert receipt(right, model, rows, 0).retained_entries == 5 * model.kv_heads * model.layers
    with pytest.raises(EngineError, match="where 36 were requested"):
        receipt(replace(right, budget=6), model, rows, 0)


# --- quotas of stage 1 --------------------------------------------------------------------


@example(290_000, [100])  # 0.29 * 100 is 28.999... in floats; the user wrote 29 of 100
@example(570_000, [100])
@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**7), min_size=1, max_size=4))
def test_quotas_are_exact_for_every_alpha_that_can_be_written(millionths, budgets):
    alpha = VariantSpec.parse(f"snapkv+critical:alpha={millionths / 10**6}").params["alpha"]
    quotas = first_stage(torch.tensor(budgets), float(alpha)).tolist()
    assert quotas == [Fraction(millionths, 10**6) * budget // 1 for budget in budgets]


def test_what_a_form_makes_of_a_decimal_is_taken_as_meant():
    assert VariantSpec.parse(f"snapkv+critical:alpha={0.1 + 0.2}").params["alpha"] == 0.3


# --- `layout=`: one set per layer, or whole pages of it -------------------------------------


def known_specs(layout: str) -> list[str]:
    """Every registered method and selector that can have a layout."""
    specs = {text: VariantSpec.parse(text) for text in REGISTERED}
    return [
        text
        for text, spec in specs.items()
        if spec.method.evicts and "layout" in spec.method.options()
        if layout == "layer" or not spec.selector.needs_entries
    ]


def small(text: str, *pairs: str) -> str:
    """With a small window and the like, where it takes them."""
    params = VariantSpec.parse(text).params
    own = [f"{key}={value}" for key, value in (("window", 8), ("lag", 12)) if key in params]
    return f"{text}:{','.join([*own, *pairs])}"


@pytest.mark.parametrize("layout", ["layer", "page:16"])
def test_heads_of_a_layer_keep_one_set_and_totals_stay_exact(processed, layout):
    for text in known_specs(layout):
        spec = VariantSpec.parse(small(text, "budget=50", f"layout={layout}"))
        spec = spec.protecting([range(40, 45)], TOKENS)
        with torch.inference_mode():
            selection = select(spec, processed, 50)
        masks = selection.keep_masks
        if layout != "layer":
            padded = [torch.nn.functional.pad(mask[0], (0, -TOKENS % 16)) for mask in masks]
            pages = sum(int(each.view(-1, 16).any(-1).sum()) for each in padded) / len(masks)
            assert any(f" {pages:.1f} pages per layer" in note for note in selection.warnings), text
        total = masks[0][..., 0].numel() * len(masks) * spec.holds(50, TOKENS)
        assert sum(int(mask.sum()) for mask in masks) == total, text
        for mask in masks:
            assert (mask == mask[0]).all(), text
            assert mask[:, 40:45].all(), text
            if layout != "layer":
                assert cut_pages(mask[0].tolist(), spec, 16) <= 1, text


def cut_pages(kept: list[bool], spec: VariantSpec, size: int) -> int:
    """Pages that are kept in part, though nothing in them is protected."""
    always = {i for place in spec.always_kept(TOKENS) for i in place}
    pages = [range(at, min(at + size, TOKENS)) for at in range(0, TOKENS, size)]
    free = [page for page in pages if not always & set(page)]
    return sum(0 < sum(kept[i] for i in page) < len(page) for page in free)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(["snapkv", "pyramidkv", "adakv", "keydiff", "snapkv+critical"]),
    size=st.sampled_from([0, 2, 5, 16, 64]),
    budget=st.integers(18, TOKENS - 1),
    alpha=st.sampled_from([0.0, 0.3, 1.0]),
    at=st.integers(0, 100),
)
def test_sets_are_those_of_the_literal_reference(processed, name, size, budget, alpha, at):
    layout = f"page:{size}" if size else "layer"
    own = [f"alpha={alpha}"] if name.endswith("critical") else []
    spec = VariantSpec.parse(small(name, f"budget={budget}", f"layout={layout}", *own))
    spec = spec.protecting([range(at, at + 5)], TOKENS)
    protected = {i for place in spec.always_kept(TOKENS) for i in place}
    with torch.inference_mode():
        chosen = select(spec, processed, budget)
        for layer, mask in enumerate(chosen.keep_masks):
            view = PromptLayer(processed, layer)
            first = padded(spec.scorer.scores(view, spec.params))
            second = first
            if spec.critical:
                second = padded(second_score(spec.scorer, view, spec.params))
            spare = int(mask[0].sum()) - len(protected)
            share = alpha if spec.critical else 1.0
            if size:
                expected = keep_pages(first, second, protected, spare, size, share)
            elif not spec.critical:
                expected = keep_layer(first, protected, spare)
            else:
                continue  # two stages of single entries: test_select and test_selection_laws
            assert set(mask[0].nonzero()[:, 0].tolist()) == expected
    assert sum(int(mask[0].sum()) for mask in chosen.keep_masks) == budget * len(chosen.keep_masks)


def padded(scores: torch.Tensor) -> list[list[float]]:
    """Of all positions; the window's are protected and never looked at."""
    return torch.nn.functional.pad(scores, (0, TOKENS - scores.shape[1])).double().tolist()


@pytest.mark.parametrize("layout", ["head", "layer", "page:4"])
def test_stage_one_lies_in_what_is_kept(processed, layout):
    spec = VariantSpec.parse(small("adakv", "budget=40", f"layout={layout}"))
    both = spec.with_selector(CRITICAL, alpha=0.5)
    with torch.inference_mode():
        chosen = select(both, processed, 40)
        for stage, mask in zip(stage_one(both, processed, chosen), chosen.keep_masks, strict=True):
            assert not (stage & ~mask).any()
            assert 8 < int(stage[0].sum()) < int(mask[0].sum())
