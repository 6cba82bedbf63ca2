"""What parts of another package may give; whatever else they give is one sentence that names it."""

import pytest
import torch

from ckv_core.engine.outside import is_outside
from ckv_core.engine.select import select
from ckv_core.errors import EngineError
from ckv_core.methods import METHODS
from ckv_core.methods.base import Method
from ckv_core.methods.parts.base import RECENT, BudgetRule, Kept, Scorer, Selector
from ckv_core.methods.parts.rules import UNIFORM
from ckv_core.methods.parts.top_k import TOP_K
from ckv_core.records.variants import VariantSpec
from tests.factories.decoding import prefilled
from tests.factories.models import prompt_ids, tiny_model

BUDGET, TOKENS = 20, 45


class Given(Scorer):
    name = "given"
    parameters = (RECENT,)
    query_aware = False
    non_negative = True

    def __init__(self, change=lambda scores: scores):
        self.change = change

    def scores(self, view, parameters):
        return self.change(view.keys.float().norm(dim=-1))


class GivenRule(BudgetRule):
    name = "given_rule"

    def __init__(self, change):
        self.change = change

    def head_budgets(self, candidates, spare, parameters):
        return self.change(torch.full((candidates.layers, candidates.kv_heads), spare))


class GivenSelector(Selector):
    name = "given_selector"

    def __init__(self, change):
        self.change = change

    def keep(self, candidates, layers, head_budgets):
        return Kept(self.change(TOP_K.keep(candidates, layers, head_budgets).mask))


@pytest.fixture(scope="module")
def processed():
    return prefilled(tiny_model("llama"), prompt_ids(TOKENS, seed=7))


@pytest.fixture
def keep(processed, monkeypatch):
    """What a method of these parts keeps, of a SPEC's ending."""
    monkeypatch.setattr(METHODS, "_methods", dict(METHODS._methods))
    processed.memo.clear()

    def run(ending="", scorer=None, rule=UNIFORM, selector=TOP_K):
        parts = {"scorer": scorer or Given(), "budget_rule": rule, "selector": selector}
        texts = {"label": "Mine", "summary": "Mine.", "source": "me"}
        METHODS.register(Method(name="mine", **texts, **parts))
        spec = VariantSpec.parse(f"mine{ending}", {"budget": str(BUDGET)})
        return select(spec, processed, BUDGET).keep_masks

    return run


def changed(at, value):
    def change(tensor):
        tensor[at] = value
        return tensor

    return change


@pytest.mark.parametrize("ending", ["", "+critical", ":layout=page:4"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (changed((1, 3), torch.nan), "not finite"),
        (changed((1, 3), -torch.inf), "not finite"),
        (changed((0, 0), -0.5), "negative scores, though it declares non_negative"),
        (lambda scores: (scores * 100).long(), "of type torch.int64, where torch.float32"),
        (lambda scores: scores[:, :-1], "the shape [2, 44], where [2, 45] is expected"),
        (lambda scores: scores.repeat(1, 2), "the shape [2, 90], where [2, 45] is expected"),
        (lambda scores: scores[:1], "the shape [1, 45], where [2, 45] is expected"),
        (lambda scores: scores.mean(0), "the shape [45], where [2, 45] is expected"),
        (lambda scores: scores.tolist(), "a list, where a tensor is expected"),
    ],
)
def test_wrong_scores_are_refused(keep, change, sentence, ending):
    with pytest.raises(EngineError) as caught:
        keep(ending, scorer=Given(change))
    assert str(caught.value).startswith("Mine (mine")
    assert ending.strip(":") in str(caught.value)
    assert "cannot run: 'given' of the package 'tests' gives" in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"rule": GivenRule(changed((0, 0), 21))}, "'given_rule' of the package 'tests' gives 121"),
        ({"rule": GivenRule(changed((0, 0), -1))}, "a budget outside of 0 to 45"),
        ({"rule": GivenRule(changed((0, 0), 46))}, "a budget outside of 0 to 45"),
        ({"rule": GivenRule(torch.Tensor.float)}, "of type torch.float32, where torch.int64"),
        ({"rule": GivenRule(lambda each: each[0])}, "the shape [2], where [3, 2] is expected"),
        ({"selector": GivenSelector(lambda mask: ~mask)}, "more or fewer entries than their"),
        ({"selector": GivenSelector(torch.Tensor.int)}, "a mask of type torch.int32"),
        ({"selector": GivenSelector(lambda mask: mask[..., :-1])}, "the shape [3, 2, 44]"),
    ],
)
def test_wrong_budgets_and_masks_are_refused(keep, parts, sentence):
    with pytest.raises(EngineError, match=r"^Mine \(mine.*\) cannot run: .* gives ") as caught:
        keep(**parts)
    assert sentence in str(caught.value)


def test_scores_may_end_with_the_last_entry_that_may_be_evicted(keep):
    (mask, *_) = keep(":recent=4", scorer=Given(lambda scores: scores[:, :-4]))
    assert mask[:, -4:].all()


def test_right_parts_of_another_package_run_and_our_own_are_not_checked(keep):
    parts = {"rule": GivenRule(lambda each: each), "selector": GivenSelector(lambda each: each)}
    assert sum(int(mask.sum()) for mask in keep(**parts)) == 3 * 2 * BUDGET
    assert is_outside(Given())
    ours = [(method.scorer, method.budget_rule, method.selector) for method in METHODS]
    parts = {part for parts in ours for part in parts if part is not None}
    assert {type(part).__module__ for part in parts if is_outside(part)} == {__name__}
