"""The verdict on a sweep: the smallest budget of each method that still answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ckv_core.analysis.points import BUDGET_UNITS, Curve
from ckv_core.analysis.sweep import AlphaOptimum, curves
from ckv_core.analysis.verdict.base import (
    STATES,
    Group,
    Member,
    State,
    Verdict,
    counted,
    listed,
    percent,
)
from ckv_core.analysis.verdict.rounding import rounding_cautions
from ckv_core.analysis.verdict.run import outcome_cautions, state_of
from ckv_core.methods.parameters import Budget
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import Tally, full_of, outcome_word, tally

MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class Reach:
    """What one curve came to at each budget.

    Attributes:
        states: (budget, outcome) by rising budget.
    """

    curve: Curve
    states: tuple[tuple[Budget, State], ...]

    @property
    def name(self) -> str:
        return self.curve.first.name

    @property
    def smallest(self) -> Budget | None:
        """The smallest budget that keeps the answer or text; None where none does."""
        return next((budget for budget, state in self.states if state == "kept"), None)

    @property
    def lost_above(self) -> Budget | None:
        """The smallest budget above it that does not; None where all do."""
        kept = [state == "kept" for _, state in self.states]
        above = self.states[kept.index(True) :] if any(kept) else ()
        return next((budget for budget, state in above if state == "lost"), None)


def sweep_verdict(result: RunResult) -> Verdict | None:
    """What came out of a sweep that is over; None where nothing was measured."""
    full = full_of(result.variants)
    lines = curves(result)
    if not lines:
        return None
    if full is None or not any(v.stopped for v in result.variants if v.method != "full"):
        return Verdict(
            headline="This sweep generated no text: it says how far eviction moves the model, and "
            "not who still answers.",
            cautions=(
                *rounding_cautions(result),
                "Generate text to see the smallest budget that still answers.",
            ),
        )
    counts = tally(result.variants)
    reaches = [r for curve in lines if (r := _reach(curve, counts.by_answer)).states]
    if not reaches:
        return None
    baseline = Member(result.variants.index(full), "Full cache", outcome_word(full))
    own = Group(STATES.get(full.outcome, "cut"), "Baseline", (baseline,), full.outcome)
    does = "answers correctly" if counts.by_answer else "writes the full cache's text"
    can_judge = counts.full == "answered" or not counts.by_answer
    return Verdict(
        headline=f"{counts.about_full} {_headline(result, reaches, does)}".strip(),
        groups=(*([own] if counts.by_answer else []), *_groups(result, reaches)),
        findings=(
            *_exceptions(reaches, does),
            *(_perturbation(reaches, does) if can_judge else ()),
        ),
        cautions=(*rounding_cautions(result), *_cautions(result, counts)),
    )


def alpha_outcome(result: RunResult, optimum: AlphaOptimum) -> str:
    """What the best fixed alpha does to the outcome, and what the others do; empty if unknown."""
    full = full_of(result.variants)
    by_answer = tally(result.variants).by_answer
    states = {
        a: state_of(result.variants[i], by_answer)
        for a, i in zip(optimum.alphas, optimum.indices, strict=True)
    }
    own = states.pop(optimum.best_fixed)
    if full is None or own is None:
        return ""
    words = {
        "kept": "answers" if by_answer else "same text",
        "lost": "does not answer" if by_answer else "another text",
        "cut": "cut before an answer",
    }
    others = [f"{alpha:g}" for alpha, each in states.items() if each == "kept"]
    does = "do" if len(others) != 1 else "does"
    rest = f"{listed(others)} {does}" if others else "no other does"
    if own == "kept":
        rest = f"so {does} {listed(others)}" if others else "no other does"
    return f"{words[own]}; {rest}"


def _reach(curve: Curve, by_answer: bool) -> Reach:
    states = [(budget, state_of(row.variants[0], by_answer)) for budget, row in curve.rows]
    return Reach(curve, tuple((budget, each) for budget, each in states if each is not None))


def _headline(result: RunResult, reaches: Sequence[Reach], does: str) -> str:
    points = [state for reach in reaches for _, state in reach.states]
    tried = sorted({b for reach in reaches for b, _ in reach.states}, key=_amount)
    if set(points) == {"cut"}:
        return "Every point was cut before an answer."
    if "kept" not in points:
        return f"No point {does}, up to {_budget(result, tried[-1])}."
    if set(points) == {"kept"}:
        return f"Every point {does}, down to {_budget(result, tried[0])}."
    least = min((each for r in reaches if (each := r.smallest) is not None), key=_amount)
    first = [reach.name for reach in reaches if reach.smallest == least]
    who = "all" if 1 < len(first) == len(reaches) else listed(first)
    return f"The smallest budget that still {does} is {_budget(result, least)}, by {who}."


def _groups(result: RunResult, reaches: Sequence[Reach]) -> Iterable[Group]:
    """One per smallest budget, rising; then those that no budget helps."""
    budgets = sorted({each for r in reaches if (each := r.smallest) is not None}, key=_amount)
    for budget in budgets:
        members = tuple(_member(r) for r in reaches if r.smallest == budget)
        yield Group("kept", f"From {_budget(result, budget)}", members)
    none = tuple(_member(reach) for reach in reaches if reach.smallest is None)
    if none:
        most = max((b for reach in reaches for b, _ in reach.states), key=_amount)
        is_cut = all(state == "cut" for reach in reaches for _, state in reach.states)
        yield Group("cut" if is_cut else "lost", f"Not even with {_budget(result, most)}", none)


def _member(reach: Reach) -> Member:
    note = "" if reach.lost_above is None else f"not at {reach.lost_above}"
    if reach.smallest is None and all(state == "cut" for _, state in reach.states):
        note = "cut each time"
    return Member(reach.curve.first.index, reach.name, note)


def _budget(result: RunResult, budget: Budget) -> str:
    """`256 entries per KV head (17 % of the prompt)`; `4MiB` where budgets were given in bytes."""
    if budget.unit != "tokens":
        return str(budget)
    whole = result.prompt.compressed_tokens if result.prompt else 0
    share = f" ({percent(min(1.0, budget.amount / whole))} of the prompt)" if whole else ""
    return f"{budget.amount:,.0f} {BUDGET_UNITS[budget.unit]}{share}"


def _amount(budget: Budget) -> float:
    return budget.amount


def _exceptions(reaches: Sequence[Reach], does: str) -> Iterable[str]:
    """Where a lower budget does and a higher one does not."""
    odd = [reach for reach in reaches if reach.lost_above is not None]
    for reach in odd[:MOST_TOLD]:
        yield f"{reach.name} {does} at {reach.smallest} and not at {reach.lost_above}."
    if len(odd) > MOST_TOLD:
        yield f"So do {counted(len(odd) - MOST_TOLD, 'more line')}: there is no clear limit."


def _perturbation(reaches: Sequence[Reach], does: str) -> Iterable[str]:
    """Of two points at one budget with different outcomes, which one moves heads less."""
    by_budget: dict[Budget, list[tuple[State, float]]] = {}
    for reach in reaches:
        rows = dict(reach.curve.rows)
        for budget, state in reach.states:
            moved = mean_head_l1(rows[budget].variants[0])
            if moved is not None:
                by_budget.setdefault(budget, []).append((state, moved))
    pairs = [
        (kept, lost)
        for points in by_budget.values()
        for one, kept in points
        for other, lost in points
        if (one, other) == ("kept", "lost")
    ]
    if pairs:
        lower = sum(kept < lost for kept, lost in pairs)
        yield (
            f"In {lower:,} of {counted(len(pairs), 'head-to-head comparison')} the method that "
            f"{does} had the lower perturbation."
        )


def _cautions(result: RunResult, counts: Tally) -> Iterable[str]:
    yield from outcome_cautions(result, counts)
    yield "One prompt only, and only the budgets tried: run a study before you decide."
