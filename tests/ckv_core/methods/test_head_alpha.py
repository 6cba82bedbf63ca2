"""Laws of the alpha per KV head: literal loops in Python floats, and the bound it minimises."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ckv_core.methods.parts.critical import (
    ALPHA_GRID,
    Ranking,
    critical_auto,
    first_stage,
    head_bound,
)
from ckv_core.methods.parts.top_k import order
from tests.factories.layers import Scores
from tests.reference import head_alpha as literal


@dataclass
class Case:
    """Two KV heads of two query heads, a few sinks, a window, random attention and norms."""

    attention: Tensor
    norms: Tensor
    columns: slice  # which entries may be evicted
    scores: Scores
    budgets: Tensor

    def __post_init__(self) -> None:
        self.ranking = Ranking(order(self.scores.first), order(self.scores.second))

    def choose(self) -> tuple[Tensor, Tensor]:
        return critical_auto(self.ranking, self.budgets, self.attention, self.norms, self.columns)

    def whole(self, *masks: Tensor) -> Tensor:
        """Each with all that is protected."""
        full = torch.ones(len(masks), 2, self.attention.shape[1], dtype=torch.bool)
        full[..., self.columns] = torch.stack(masks)
        return full


@st.composite
def cases(draw: st.DrawFn) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    entries, sinks, window = draw(st.integers(6, 24)), draw(st.integers(0, 2)), 3
    evictable = entries - sinks - window
    peak = draw(st.sampled_from([0.3, 2.0, 6.0]))
    attention = (peak * torch.randn(4, entries, generator=generator)).softmax(-1)
    norms = torch.rand(4, entries, generator=generator) * 3 + 0.1
    part = slice(sinks, sinks + evictable)
    scores = Scores(
        torch.rand(2, evictable, generator=generator),
        (attention * norms).view(2, 2, -1).mean(1)[:, part],
    )
    budgets = [draw(st.integers(0, evictable)) for _ in range(2)]
    return Case(attention, norms, part, scores, torch.tensor(budgets))


@given(cases())
def test_the_alpha_of_each_head_equals_the_literal_search(case):
    masks, alphas = case.choose()
    assert masks.sum(-1).tolist() == case.budgets.tolist()
    entries, sinks = case.attention.shape[1], case.columns.start
    protected = {*range(sinks), *range(entries - 3, entries)}
    for head in range(2):
        scores = tuple(stage[head].tolist() for stage in case.scores)
        own = slice(2 * head, 2 * head + 2)
        queries = list(zip(case.attention[own].tolist(), case.norms[own].tolist(), strict=True))
        tried = literal.tried(scores, int(case.budgets[head]), queries, protected, sinks)
        bound, expected = tried[round(float(alphas[head]) * 20)]
        assert bound == pytest.approx(min(tried)[0], rel=1e-5, abs=1e-6)
        assert {sinks + i for i in masks[head].nonzero().flatten().tolist()} | protected == expected


@given(cases())
def test_no_fixed_alpha_of_the_grid_has_a_smaller_bound(case):
    masks, _ = case.choose()
    sets = [case.ranking.keep(case.budgets, first_stage(case.budgets, a)) for a in ALPHA_GRID]
    bound = head_bound(case.attention, case.norms, case.whole(masks, *sets))
    # Equal sets may differ in the last digits: the batch they are summed in has another size.
    assert bool((bound[0] <= bound[1:] * (1 + 1e-5) + 1e-6).all())


@given(cases())
def test_the_bound_holds_for_any_values_of_those_norms(case):
    """||(A - A')V||_1 with rows V of the given norms stays below it, at every sigma."""
    masks, _ = case.choose()
    attention, norms = case.attention.double(), case.norms.double()
    attention /= attention.sum(-1, keepdim=True)
    keep = case.whole(masks)
    bound = head_bound(attention, norms, keep)[0]
    directions = torch.randn(
        attention.shape[1], 5, generator=torch.Generator().manual_seed(1)
    ).double()
    directions /= directions.abs().sum(-1, keepdim=True)
    for head in range(2):
        moved = 0.0
        for query in (2 * head, 2 * head + 1):
            kept = attention[query] * keep[0, head]
            difference = attention[query] - kept / kept.sum()
            values = directions * norms[query][:, None]
            moved += float((difference @ values).abs().sum())
        assert moved <= float(bound[head]) * (1 + 1e-9) + 1e-12


def test_where_little_attention_is_kept_more_attention_is_the_smaller_bound():
    """At sigma <= 0.5 theta itself would prefer the entry of the small norm."""
    attention = torch.tensor([[0.2, 0.1, 0.7]])
    norms = torch.tensor([[5.0, 0.1, 1.0]])
    keep = torch.tensor([[[True, False, False]], [[False, True, False]]])
    heavy, light = head_bound(attention, norms, keep)[:, 0].tolist()
    assert heavy < light


def test_the_grid_is_exact_twentieths():
    assert [Fraction(str(alpha)) for alpha in ALPHA_GRID] == [Fraction(i, 20) for i in range(21)]
