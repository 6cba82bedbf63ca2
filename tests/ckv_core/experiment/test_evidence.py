"""The evidence tracker: where a text lies in the tokens, and how many slots still hold it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import PromptError
from ckv_core.experiment.evidence import evidence, held
from ckv_core.records.agreement import answer_found
from ckv_core.records.passages import occurrences
from ckv_core.records.records import RetainedSet
from tests.factories.runs import bare

words = st.text(alphabet="aAbß \n\u00a0.", max_size=12)


@pytest.mark.parametrize(
    ("pieces", "text", "spans"),
    [
        (["The", " code", " is", " 4", "2."], "code IS\n42", [(1, 5)]),
        (["xx", "yy", "", "zz"], "yyz", [(1, 4)]),
        (["ab", "ab", "ab"], "ab", [(0, 1), (1, 2), (2, 3)]),
        (["a ", " \n", " b"], "a b", [(0, 3)]),
        (["Stra", "ße"], "STRASSE", [(0, 2)]),
        (["a.c"], "a?c", []),
        (["abc"], "  ", []),
        ([], "a", []),
    ],
)
def test_occurrences_are_token_spans(pieces, text, spans):
    assert occurrences(pieces, text) == spans


@given(st.lists(words, max_size=8), words)
def test_a_text_occurs_exactly_where_the_answer_is_found(pieces, text):
    spans = occurrences(pieces, text)
    assert bool(spans) == bool(answer_found("".join(pieces), text))
    for first, end in spans:
        assert answer_found("".join(pieces[first:end]), text)
        # neither end token is there for nothing
        assert not answer_found("".join(pieces[first + 1 : end]), text) or end - first > 1


def test_chance_is_the_mean_over_random_sets():
    generator = np.random.default_rng(5)
    held = []
    for _ in range(3000):
        mask = np.zeros((1, 2, 12), dtype=np.bool_)
        mask[:, :, :2] = mask[:, :, 10:] = True
        slots = generator.choice(16, size=5, replace=False)
        mask[0, slots // 8, 2 + slots % 8] = True
        shares = evidence(RetainedSet.from_mask(mask), [(1, 6)], [0], {"sinks": 2, "window": 2})
        held.append(shares.mean)
        expected = shares.chance
    assert np.mean(held) == pytest.approx(expected, abs=0.01)
    assert expected == pytest.approx((1 + 4 * 5 / 16) / 5)


@pytest.mark.parametrize("span", [(2, 2), (3, 1), (-1, 2), (4, 6)])
def test_a_span_outside_the_prompt_is_refused(span):
    retained = RetainedSet.from_mask(np.ones((2, 3, 5), dtype=np.bool_))
    with pytest.raises(PromptError, match="not a passage"):
        evidence(retained, [span], [0, 1], {})


def test_slots_and_heads_that_hold_all_of_it_are_counted_over_the_occurrences():
    mask = np.zeros((3, 2, 10), dtype=np.bool_)
    mask[1] = True  # not evictable
    mask[0, 0, 2:4] = mask[0, 1, 2] = mask[2, 1, 6:8] = True
    variant = bare("mine")
    spans = [(2, 4), (6, 8)]
    assert held(variant, spans, [0, 2]) is None
    found = held(replace(variant, retained=RetainedSet.from_mask(mask)), spans, [0, 2])
    assert (found.entries, found.slots, found.whole, found.heads) == (5, 16, 2, 4)
    assert found.mean == pytest.approx(5 / 16)
    assert found.chance == pytest.approx(5 / 40)


@pytest.mark.parametrize("said", [0, -3, "4", 2.0, 10**15, True])
def test_whatever_an_imported_variant_says_it_protects_its_passage_is_counted(said):
    retained = RetainedSet.from_mask(np.ones((1, 2, 10), dtype=np.bool_))
    params = {"sinks": said, "window": said}
    found = held(replace(bare("?"), params=params, retained=retained), [(2, 4)], [0])
    assert (found.entries, found.mean, found.chance) == (4, 1.0, 1.0)
