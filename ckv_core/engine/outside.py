"""Checks of what another package's parts give, where it enters the engine.

Our own parts are held to the same by the tests, and are not checked while they run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial

import torch
from torch import Tensor

from ckv_core.errors import EngineError
from ckv_core.methods.parts.base import (
    BudgetRule,
    Candidates,
    Kept,
    Parameters,
    Part,
    Scorer,
)
from ckv_core.methods.parts.views import LayerView
from ckv_core.records.variants import VariantSpec


def is_outside(part: Part) -> bool:
    """Whether a part's code is of another package."""
    return not type(part).__module__.startswith("ckv_core.")


def checked_scorer(spec: VariantSpec, least: int) -> Scorer:
    """The variant's scorer; one of another package raises EngineError where its scores are wrong.

    `least`: columns that the scores must have.
    """
    scorer = spec.scorer
    if not is_outside(scorer):
        return scorer
    checked = copy(scorer)
    scores, evidence = checked.scores, checked.evidence  # one may call the other: checked, too
    vars(checked)["scores"] = partial(_scores, spec, scores, least, of_queries=False)
    vars(checked)["evidence"] = partial(_scores, spec, evidence, least, of_queries=True)
    return checked


def checked_budgets(spec: VariantSpec, rule: BudgetRule, candidates: Candidates) -> Tensor:
    """Returns the rule's head budgets; of another package's rule they are checked.

    EngineError where they are none or their sum is wrong; the shape is `BudgetRule.head_budgets`'.
    """
    with _naming(spec):
        given = rule.head_budgets(candidates, candidates.spare, spec.params)
    if not is_outside(rule):
        return given
    problem = _shape_problem(given, (candidates.layers, candidates.kv_heads))
    if not problem and given.dtype != torch.int64:
        problem = f"budgets of type {given.dtype}, where torch.int64 is expected"
    elif not problem and not 0 <= int(given.min()) <= int(given.max()) <= candidates.entries:
        problem = f"a head a budget outside of 0 to {candidates.entries:,}, all that it can keep"
    total = candidates.layers * candidates.kv_heads * candidates.spare
    short = not problem and total - int(given.sum())  # below 0: too many
    if short and not (rule.at_most and short > 0):
        problem = f"{int(given.sum()):,} entries to all heads together, where {total:,} are shared"
    _refuse(spec, rule, problem)
    return given


def checked_keep(
    spec: VariantSpec, candidates: Candidates, layers: slice, head_budgets: Tensor
) -> Kept:
    """Returns what the selector keeps; another package's must keep each budget, or EngineError.

    See `Selector.keep` for the arguments.
    """
    with _naming(spec):
        kept = spec.selector.keep(candidates, layers, head_budgets)
    if not is_outside(spec.selector):
        return kept
    problem = _shape_problem(kept.mask, (*head_budgets.shape, candidates.entries))
    if not problem and kept.mask.dtype != torch.bool:
        problem = f"a mask of type {kept.mask.dtype}, where torch.bool is expected"
    elif not problem and not torch.equal(kept.mask.sum(-1).cpu(), head_budgets.cpu()):
        problem = "some heads more or fewer entries than their budgets"
    _refuse(spec, spec.selector, problem)
    return kept


def _scores(
    spec: VariantSpec,
    score: Callable[[LayerView, Parameters], Tensor],
    least: int,
    view: LayerView,
    parameters: Parameters,
    *,
    of_queries: bool,
) -> Tensor:
    with _naming(spec):
        found = score(view, parameters)
    heads = view.query_heads if of_queries else view.kv_heads
    most = view.keys.shape[1]
    columns = found.shape[-1] if isinstance(found, Tensor) and found.ndim else least
    problem = _shape_problem(found, (heads, min(max(columns, least), most)))
    if not problem and not found.is_floating_point():
        problem = f"scores of type {found.dtype}, where torch.float32 is expected"
    elif not problem and not found.isfinite().all():
        problem = "scores that are not finite (NaN or infinite)"
    elif not problem and spec.scorer.non_negative and (found < 0).any():
        problem = "negative scores, though it declares non_negative, which lets +critical follow"
    _refuse(spec, spec.scorer, problem)
    return found


@contextmanager
def _naming(spec: VariantSpec) -> Iterator[None]:
    """Note at an error which method it is of, for `plug_ins.fault`."""
    try:
        yield
    except Exception as error:  # whatever another package throws; it goes on up
        error.add_note(_named(spec))
        raise


def _named(spec: VariantSpec) -> str:
    return f"{spec.method.label} ({spec.spec})"


def _shape_problem(found: object, shape: tuple[int, ...]) -> str:
    if not isinstance(found, Tensor):
        return f"a {type(found).__name__}, where a tensor is expected"
    if found.shape != shape:
        return f"the shape {list(found.shape)}, where {list(shape)} is expected"
    return ""


def _refuse(spec: VariantSpec, part: Part, problem: str) -> None:
    if problem:
        raise EngineError(
            f"{_named(spec)} cannot run: {part.name!r} of the package "
            f"{type(part).__module__.partition('.')[0]!r} gives {problem}."
        )
