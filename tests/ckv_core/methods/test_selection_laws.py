"""Laws of window scores, budgets and selectors, property-based, against literal loops.

Drawn scores are small whole numbers over 64: sums of up to four and products with whole
norms are exact in float32, so ties are real ties and equality can be demanded, not closeness.
"""

import ast
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.methods.attention import value_norm
from ckv_core.methods.parts.critical import (
    Ranking,
    critical_auto,
    first_quotas,
    first_stage,
    head_bound,
)
from ckv_core.methods.parts.rules import (
    adaptive_budgets,
    floored_budgets,
    integer_shares,
    safeguarded,
)
from ckv_core.methods.parts.top_k import keep_first, order
from ckv_core.methods.pyramidkv import pyramid_budgets
from tests.factories.layers import Scores, window_scores
from tests.reference import budgets as literal_budgets
from tests.reference import head_alpha as literal_alpha
from tests.reference import scores as literal_scores
from tests.reference import selection as literal

Rows = list[list[float]]
RATIOS = st.sampled_from([0.0, 0.1, 0.25, 0.29, 0.5, 0.57, 0.7, 1.0])


@st.composite
def rows(draw: st.DrawFn, heads: int | None = None, columns: int | None = None) -> Rows:
    """[heads][columns] scores with many ties."""
    heads = heads or draw(st.integers(1, 4))
    columns = columns or draw(st.integers(1, 20))
    top = draw(st.sampled_from([1, 3, 40]))
    values = draw(st.lists(st.integers(0, top), min_size=heads * columns, max_size=heads * columns))
    return [[v / 64 for v in values[h * columns : (h + 1) * columns]] for h in range(heads)]


@st.composite
def scored_budgets(draw: st.DrawFn) -> tuple[Rows, Rows, list[int]]:
    """First and second score and an unequal budget per head, 0 and all included."""
    first = draw(rows())
    second = draw(rows(len(first), len(first[0])))
    counts = st.one_of(st.integers(0, len(first[0])), st.sampled_from([0, len(first[0])]))
    return first, second, draw(st.lists(counts, min_size=len(first), max_size=len(first)))


def kept(mask: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero().flatten().tolist()) for row in mask]


def scores_of(first: Rows, second: Rows) -> Scores:
    return Scores(torch.tensor(first), torch.tensor(second))


def top_k(score: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
    """Plain selection, as the engine does it."""
    return keep_first(order(score), budgets)


def critical(scores: Scores, budgets: torch.Tensor, alpha: float) -> torch.Tensor:
    ranking = Ranking(order(scores.first), order(scores.second))
    return ranking.keep(budgets, first_stage(budgets, alpha))


def adaptive(first: Rows, spare: int, safeguard: float) -> torch.Tensor:
    """Budgets of one layer's heads, as the engine finds them."""
    joint = order(torch.tensor(first).flatten())
    return adaptive_budgets(joint[None], len(first), spare, safeguard)[0]


# --- window scores and value norms --------------------------------------------------------

SCORINGS = st.fixed_dictionaries(
    {
        "kernel": st.sampled_from([1, 3, 7, 31]),
        "pool": st.sampled_from(["max", "avg", "none"]),
        "group": st.sampled_from(["mean", "max"]),
        "sinks": st.integers(0, 3),
        "stage2": st.sampled_from(["raw", "pooled"]),
        "norm": st.sampled_from(["on", "off"]),
        "product": st.sampled_from(["head", "group"]),
        "epsilon": st.sampled_from([0.0, 1e-4, 0.5]),
    }
)


@given(st.sampled_from([(1, 1), (2, 2), (1, 4), (3, 3)]), st.integers(4, 20), SCORINGS, st.data())
def test_scores_equal_the_literal_loop(heads, columns, parameters, data):
    kv_heads, group_size = heads
    attention = data.draw(rows(kv_heads * group_size, columns))
    norms = [[64 * v + 1 for v in row] for row in data.draw(rows(len(attention), columns + 2))]
    scores = window_scores(torch.tensor(attention), torch.tensor(norms), kv_heads, parameters)
    sinks = int(parameters["sinks"])
    cut = [row[:columns] for row in norms]
    first = literal_scores.first_stage_score(attention, group_size, parameters)
    second = literal_scores.second_stage_score(attention, cut, group_size, parameters)
    # float32 against float64: a handful of roundings of relative size 6e-8 each
    close = {"rtol": 2e-6, "atol": 1e-7}
    torch.testing.assert_close(
        scores.first.double(), torch.tensor(first).double()[:, sinks:], **close
    )
    torch.testing.assert_close(
        scores.second.double(), torch.tensor(second).double()[:, sinks:], **close
    )


@pytest.mark.parametrize("block", [1, 6, 1_000], ids="rows of a block {}".format)
@pytest.mark.parametrize(("kv_heads", "group_size", "head_dim"), [(1, 1, 4), (2, 3, 5), (3, 1, 8)])
def test_value_norm_equals_one_matrix_product_per_entry(
    kv_heads, group_size, head_dim, block, monkeypatch
):
    monkeypatch.setattr("ckv_core.methods.attention.block_rows", lambda *, on_cuda: block)
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(kv_heads, 9, head_dim, generator=generator)
    weight = torch.randn(11, kv_heads * group_size * head_dim, generator=generator)
    expected = literal_scores.value_norms(values, weight, kv_heads * group_size)
    # float32 sums of 11 absolute products of length <= 8
    torch.testing.assert_close(
        value_norm(values, weight), torch.tensor(expected), rtol=1e-5, atol=1e-5
    )


# --- selectors ----------------------------------------------------------------------------


@given(scored_budgets())
def test_top_k_equals_the_literal_loop(case):
    first, _, counts = case
    expected = [set(literal.top_k(row, k)) for row, k in zip(first, counts, strict=True)]
    assert kept(top_k(torch.tensor(first), torch.tensor(counts))) == expected


@given(scored_budgets(), RATIOS)
def test_critical_equals_algorithm_1_as_a_literal_loop(case, alpha):
    first, second, counts = case
    expected = [
        set(literal.two_stage(a, b, k, alpha))
        for a, b, k in zip(first, second, counts, strict=True)
    ]
    scores, budgets = scores_of(first, second), torch.tensor(counts)
    mask = critical(scores, budgets, alpha)
    assert kept(mask) == expected
    assert mask.sum(-1).tolist() == counts
    given_back = [each.tolist() for each in (scores.first, scores.second, budgets)]
    assert given_back == [first, second, counts], "what selects leaves its inputs as they are"


# --- budgets ------------------------------------------------------------------------------


@given(rows(), RATIOS, st.data())
def test_adaptive_budgets_equal_the_literal_count(first, safeguard, data):
    spare = data.draw(st.integers(0, len(first[0])))
    budgets = adaptive(first, spare, safeguard).tolist()
    assert budgets == literal_budgets.adaptive_heads(first, spare, safeguard)
    assert sum(budgets) == len(first) * spare
    assert all(0 <= count <= len(first[0]) for count in budgets)
    assert safeguard < 1 or budgets == [spare] * len(first)


@pytest.mark.parametrize(
    ("counts", "spare", "safeguard"),
    [([4, 5, 0], 3, 0.2), ([3, 13], 8, 0.1), ([1, 11], 6, 0.7)],
)
def test_remainders_that_tie_as_decimals_tie_in_adaptive_budgets(counts, spare, safeguard):
    """In binary fractions the shares of these heads are a little off, and another head gains."""
    first = [[float(place < count) for place in range(max(counts))] for count in counts]
    budgets = adaptive(first, spare, safeguard).tolist()
    assert budgets == literal_budgets.adaptive_heads(first, spare, safeguard)


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 60), st.data())
def test_pyramid_budgets_equal_exact_arithmetic(layers, spare, slack, data):
    beta = data.draw(st.sampled_from([1.0, 1.5, 3.0, 20.0, 1000.0]))
    capacity = spare + slack
    budgets = pyramid_budgets(layers, spare, capacity, beta)
    per_layer = literal_budgets.pyramid_layers(spare, layers, beta, capacity)
    assert budgets == per_layer
    assert sum(budgets) == layers * spare
    assert 0 <= min(budgets) <= max(budgets) <= capacity
    # whole numbers of falling shares: a remainder may lift a later layer by at most one
    assert all(later <= earlier + 1 for earlier, later in pairwise(per_layer))


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 60), st.integers(0, 9), st.data())
def test_kvpress_pyramid_budgets_equal_its_own_rule(layers, spare, slack, inside, data):
    beta, capacity = data.draw(st.sampled_from([1.0, 1.5, 3.0, 20.0])), spare + slack
    budgets = pyramid_budgets(layers, spare, capacity, beta, inside)
    assert budgets == literal_budgets.kvpress_pyramid(spare, layers, beta, capacity, inside)
    assert sum(budgets) == layers * spare


@given(rows(), RATIOS, st.integers(0, 9), st.data())
def test_kvpress_head_budgets_equal_its_own_rule(first, safeguard, protected, data):
    spare = data.draw(st.integers(0, len(first[0])))
    parameters = {"safeguard": safeguard, "safeguard_rule": "floor"}
    candidates = SimpleNamespace(spare=spare, protected=protected, parameters=parameters)
    joint = order(torch.tensor(first).flatten())[None]
    budgets = floored_budgets(joint, len(first), spare, safeguarded(candidates))[0].tolist()
    assert budgets == literal_budgets.kvpress_heads(first, spare, safeguard, protected)
    assert sum(budgets) == len(first) * spare


@given(scored_budgets(), RATIOS, st.integers(0, 9), st.sampled_from([0.0, 0.2, 0.7]))
@example(([[0.0, 1.0, 2.0, 3.0]], [[3.0, 2.0, 1.0, 0.0]], [3]), 0.0, 0, 0.7)
def test_stage_one_may_count_what_a_head_is_sure_of(case, alpha, protected, safeguard):
    first, second, counts = case
    spare = min(counts)
    parameters = {"alpha": alpha, "safeguard": safeguard, "safeguard_rule": "floor"}
    parameters["stage1_counts_window"] = "on"
    candidates = SimpleNamespace(spare=spare, protected=protected, parameters=parameters)
    budgets = torch.tensor(counts)
    ranking = Ranking(*(order(torch.tensor(score)) for score in (first, second)))
    found = kept(ranking.keep(budgets, first_quotas(candidates, budgets)))
    floor = math.floor((spare + protected) * Fraction(str(safeguard)))
    safe = min(max(floor, 1) if safeguard else 0, spare + protected)
    assert found == [
        set(literal.two_stage(a, b, count, alpha, (protected, safe)))
        for a, b, count in zip(first, second, counts, strict=True)
    ]


@given(st.lists(st.fractions(0, 30, max_denominator=12), min_size=1, max_size=6), st.data())
def test_largest_remainder_equals_the_literal_rule(shares, data):
    total = math.ceil(sum(shares)) if data.draw(st.booleans()) else math.floor(sum(shares))
    cap = data.draw(st.integers(-(-total // len(shares)), 40))
    whole = integer_shares(shares, total, cap)
    if all(share <= cap for share in shares):
        assert whole == literal_budgets.largest_remainder(shares, total, cap)
    assert sum(whole) == total
    assert all(0 <= count <= cap for count in whole)


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
        tried = literal_alpha.tried(scores, int(case.budgets[head]), queries, protected, sinks)
        bound, expected = tried[round(float(alphas[head]) * 20)]
        assert bound == pytest.approx(min(tried)[0], rel=1e-5, abs=1e-6)
        assert {sinks + i for i in masks[head].nonzero().flatten().tolist()} | protected == expected


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


ROOT = Path(__file__).resolve().parents[3]
# Where a name may stand: a part's own file. "noise" is a word of needle tests.
OWN = (ROOT / "ckv_core" / "methods", ROOT / "ckv_core" / "experiment")
PARTS = {
    part.name
    for method in METHODS
    for part in (method.scorer, method.budget_rule, *method.selectors, method.policy)
    if part is not None
} - set(PARAMETERS)


def compared(tree: ast.AST) -> set[str]:
    """Texts that are compared with, looked up in, or matched by a case."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            texts = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
            found |= {each.value for each in texts if isinstance(each.value, str)}
    return found


def test_no_file_compares_a_parts_name():
    assert {"top_k", "adaptive", "position", "critical"} <= PARTS
    files = [
        path for folder in ("ckv_core", "storage", "ui") for path in (ROOT / folder).rglob("*.py")
    ]
    others = [path for path in files if not any(path.is_relative_to(own) for own in OWN)]
    assert len(others) > 100
    found = {
        str(path.relative_to(ROOT)): sorted(names)
        for path in others
        if (names := PARTS & compared(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert not found
