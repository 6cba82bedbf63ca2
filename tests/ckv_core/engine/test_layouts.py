"""`layout=`: one set per layer, or whole pages of it, as the literal reference keeps them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckv_core.engine.layer_view import PromptLayer
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.select import select, stage_one
from ckv_core.errors import ConfigError
from ckv_core.methods.parts.critical import CRITICAL, second_score
from ckv_core.request.variants import VariantSpec
from tests.ckv_core.compare.test_decode_equality import prefilled
from tests.factories.models import SPECS, prompt_ids, tiny_model
from tests.reference.layouts import keep_layer, keep_pages

TOKENS = 117  # neither pages nor partitions of these tests come out even
SMALL = {"window": 8, "lag": 12}


def known_specs(layout: str) -> list[str]:
    """Every registered method and selector that can have a layout."""
    found = []
    for text in SPECS:
        spec = VariantSpec.parse(text)
        if spec.method.evicts and "layout" in spec.method.options():
            needs_entries = spec.selector.needs_entries
            found += [] if needs_entries and layout.startswith("page") else [text]
    return found


def small(text: str, *pairs: str) -> str:
    """With a small window and the like, where it takes them."""
    params = VariantSpec.parse(text).params
    own = [f"{key}={value}" for key, value in SMALL.items() if key in params]
    return f"{text}:{','.join([*own, *pairs])}"


@pytest.fixture(scope="module")
def processed() -> Prefill:
    return prefilled(tiny_model("llama"), prompt_ids(TOKENS, seed=7))


@pytest.mark.parametrize("layout", ["layer", "page:16"])
def test_heads_of_a_layer_keep_one_set_and_totals_stay_exact(processed, layout):
    for text in known_specs(layout):
        spec = VariantSpec.parse(small(text, "budget=50", f"layout={layout}"))
        spec = spec.protecting([range(40, 45)], TOKENS)
        with torch.inference_mode():
            masks = select(spec, processed, 50).keep_masks
        assert sum(int(mask.sum()) for mask in masks) == masks[0][..., 0].numel() * len(masks) * 50
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


def test_a_layout_of_pages_tells_how_full_they_are(processed):
    spec = VariantSpec.parse("streaming_llm:sinks=0,budget=32,layout=page:16")
    with torch.inference_mode():
        (note,) = select(spec, processed, 32).warnings
    # 5 positions of the last page, 16, and 11 of the page before it
    assert note.startswith("In pages of 16 positions: 3.0 pages per layer on average, 67% of")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("snapkv:layout=rows", "layout must be head, layer or page:N"),
        ("snapkv:layout=page:1", "layout must be head, layer or page:N"),
        ("lagkv:layout=page:16", "take layout=layer"),
        ("snapkv:every=256,to=64,layout=layer", "leave out layout"),
        ("h2o:layout=layer", "does not take 'layout'"),
    ],
)
def test_what_cannot_be_laid_out_so_is_said(text, said):
    with pytest.raises(ConfigError, match=said):
        VariantSpec.parse(text)


def test_a_layout_per_head_is_what_is_so_anyway():
    assert VariantSpec.parse("snapkv:layout=head") == VariantSpec.parse("snapkv")
    assert VariantSpec.parse("snapkv:layout=head", {"layout": "layer"}).params.get("layout") is None
