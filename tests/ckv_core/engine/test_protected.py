"""Protected passages: never evicted, counted inside the budget, told in the record."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.base.spans import merged, ranges_text, read_ranges, without
from ckv_core.engine.compare import compare
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.errors import CkvError
from ckv_core.experiment.evidence import held
from ckv_core.methods import METHODS
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import RunResult
from ckv_core.records.identity import identify
from ckv_core.records.passages import spans_of
from ckv_core.records.run_request import MAX_PROTECTED
from ckv_core.records.variants import VariantSpec
from tests.factories.events import folded
from tests.factories.models import SPECS, tiny_model
from tests.factories.tiny_runs import short_request
from tests.reference.report import report

BUDGET, WINDOW = 70, 8
PLACES = st.lists(
    st.builds(lambda first, more: range(first, first + more), st.integers(0, 40), st.integers(0, 9))
)


def run(protect: tuple[str, ...], *specs: str, prefills: PrefillCache | None = None) -> RunResult:
    settings = {"context": report()[:400], "scenario": "regular", "max_new_tokens": 4}
    asked = short_request("full", *specs, protect=protect, **settings)
    return folded(compare(asked, tiny_model("llama"), prefills=prefills))


def passage() -> str:
    """Words from the middle of the context."""
    return " ".join(report()[:400].split()[20:24])


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "full"])
def test_every_method_keeps_them_in_every_head_and_its_total(spec):
    known = VariantSpec.parse(spec).params
    own = {"window": 3 if "buffer" in known else WINDOW, "sinks": 4, "lag": 12, "buffer": 3}
    parameters = ",".join(f"{key}={n}" for key, n in own.items() if key in known)
    result = run((passage(), "tokens:50-58"), f"{spec}:budget={BUDGET},{parameters}".rstrip(","))
    variant, prompt = result.variants[1], result.prompt
    mask = variant.retained.mask()
    each = VariantSpec.parse(variant.spec).holds(BUDGET, mask.shape[2])
    assert variant.receipt.retained_entries == mask.sum() == mask[..., 0].size * each
    spans = spans_of(prompt, passage())
    assert spans
    for first, end in (*spans, (50, 59)):
        assert mask[..., first:end].all()
    if variant.held is not None:  # it went on evicting
        _, _, _, positions = variant.held.evictions().T
        assert positions.size or variant.method == "scissorhands"
        for first, end in (*spans, (50, 59)):
            assert not ((first <= positions) & (positions < end)).any()
        if variant.method in {"tova", "h2o"}:  # others let go of several at a time
            assert set(variant.held.entries) == {variant.receipt.retained_entries}


@given(PLACES, PLACES)
def test_ranges_join_and_cut_as_sets_do(places, others):
    joined = merged(places)
    assert {i for each in joined for i in each} == {i for each in places for i in each}
    assert all(one.stop < two.start for one, two in pairwise(joined))
    left = without(joined, others)
    assert {i for each in left for i in each} == {i for each in joined for i in each} - {
        i for each in others for i in each
    }
    assert read_ranges(ranges_text(joined), 99) == joined


@pytest.mark.parametrize("text", ["", "3", "3-", "9-3", "3-9,", "-3-9", 7, None, "1-2 " * 99])
def test_what_is_no_list_of_ranges_protects_nothing(text):
    assert read_ranges(text, 50) == ()


# These keep the newest anyway, and at a small budget the end of a long question.
AGNOSTIC = [
    method.name
    for method in METHODS
    if method.regime == "query-agnostic" and not method.scorer.prefers_newest
]


@pytest.mark.parametrize("method", AGNOSTIC)
def test_query_agnostic_methods_keep_the_question_in_regular_inside_the_budget(method):
    """What stands behind the context, by the rendered text; off, and with the preset, as before."""
    result = run((), f"{method}:budget={BUDGET}", f"{method}:budget={BUDGET},preset=kvpress")
    _, variant, there = result.variants
    prompt = result.prompt
    text = "".join(prompt.pieces)
    behind = next(
        at
        for at in range(prompt.tokens)
        if len("".join(prompt.pieces[:at])) >= text.index(report()[:400]) + 400
    )
    mask = variant.retained.mask()
    assert mask[..., behind:].all()
    receipt = variant.receipt
    assert receipt.retained_entries == mask.sum() <= mask[..., 0].size * BUDGET
    assert mask.sum() == receipt.requested_entries or VariantSpec.parse(variant.spec).at_most
    assert variant.params["keep_question"] == "on"
    assert variant.params["question_at"] == f"{behind}-{prompt.tokens - 1}"
    assert there.params["keep_question"] == "off"
    assert "question_at" not in there.params
    if method not in ("lagkv", "kvzip_threshold"):  # they keep the newest anyway
        assert not there.retained.mask()[..., behind:].all()
    found = held(variant, [(behind, prompt.tokens)], result.model.evictable_layers)
    assert found.mean == found.chance == 1


def test_a_budget_below_the_question_is_refused_and_context_only_keeps_its_budget():
    with pytest.raises(CkvError, match=r"always kept \(sinks 4 \+ question \d+\)"):
        run((), "kvzip:budget=20")
    _, newest = run((), "streaming_llm:budget=20").variants
    assert "keep_question" not in newest.params
    settings = {"context": report()[:400], "max_new_tokens": 1}
    asked = short_request("kvzip:budget=20", scenario="context-only", **settings)
    (variant,) = folded(compare(asked, tiny_model("llama"))).variants
    assert "question_at" not in variant.params
    assert variant.receipt.warnings == ()


def test_the_record_says_what_was_protected_and_the_evidence_counts_it():
    spec = f"snapkv:budget={BUDGET},window={WINDOW}"
    result, plain = run(("tokens:50-58",), spec), run((), spec)
    full, variant = result.variants
    assert variant.params["protected"] == "50-58"
    assert "protected" not in full.params
    again = from_json(json.loads(json.dumps(to_json(result))))
    assert again.variants[1].params == variant.params
    found = held(variant, [(50, 59)], result.model.evictable_layers)
    assert found.mean == found.chance == 1
    assert identify(variant) != identify(plain.variants[1])
    # The same text lies elsewhere in another prompt.
    elsewhere = replace(variant, params={**variant.params, "protected": "61-69"})
    assert identify(variant) == identify(elsewhere)


def test_a_changed_passage_is_chosen_anew_from_a_kept_prompt():
    kept, masks = PrefillCache(2**30), []
    for protect in ((), ("tokens:20-29",), ("tokens:60-69",)):
        result = run(protect, "adakv+critical:budget=40,window=8", prefills=kept)
        masks.append(result.variants[1].retained.mask())
    assert masks[1][..., 20:30].all()
    assert masks[2][..., 60:70].all()
    assert not masks[0][..., 20:30].all()
    assert not masks[1][..., 60:70].all()


@pytest.mark.parametrize(
    ("protect", "said"),
    [
        (("no such words",), "does not occur in the text"),
        (("tokens:5-4000",), "give the first and the last position"),
        (("tokens:9-5",), "ends before it begins"),
        ((" ",), "A protected text is empty"),
        (("e",), f"up to {MAX_PROTECTED} can be protected"),
        (tuple(f"tokens:{i}-{i}" for i in range(99)), "at most 12 values are expected"),
        (("tokens:0-69",), "a budget of 70 tokens is below the 78 that are always kept"),
    ],
)
def test_what_cannot_be_protected_is_said_in_a_sentence(protect, said):
    with pytest.raises(CkvError, match=said.replace("(", r"\(")):
        run(protect, f"snapkv:budget={BUDGET},window={WINDOW}")
