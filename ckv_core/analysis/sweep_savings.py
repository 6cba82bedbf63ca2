"""The budget that one curve of a sweep needs to be as good as a point of another. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckv_core.analysis.rounding import floor_by_figure
from ckv_core.analysis.sweep import Curve, curves
from ckv_core.experiment.stats import Match, MatchOutcome, matching_budget
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import tally
from ckv_core.results.quantities import Figure

Points = Sequence[tuple[int, float]]  # (budget, value) by rising budget

# What a saving says where it names no budget.
MEANINGS: dict[MatchOutcome, str] = {
    "better": "already reached at the smallest budget",
    "worse": "not reached with the budgets tried",
    "nothing": "the point to be matched is at 0 itself",
    "rounding": "the point to be matched is below the rounding floor",
}
NOTHING = "nothing to match"
ROUNDING = "only rounding"


@dataclass(frozen=True, slots=True)
class Saving:
    """What one curve needs to match one point of another.

    Attributes:
        target_budget: of the point to be matched.
        tried: budgets at which the curve's value is known, rising.
        match: the budget of the other curve.
        is_moot: whether no point answers, so that no budget is saved at all.
    """

    curve: Curve
    target: Curve
    target_budget: int
    tried: tuple[int, ...]
    match: Match
    is_moot: bool = False

    @property
    def share(self) -> float | None:
        """Budget saved: 1 - needed / target; negative where more is needed."""
        needed = self.match.budget
        return None if needed is None else 1 - needed / self.target_budget

    @property
    def text(self) -> str:
        """`171, 33 % less`; `64 or less` and `over 512` where `MEANINGS` says more."""
        if not self.tried:
            return ""
        if self.match.budget is None or self.share is None:
            words: dict[MatchOutcome, str] = {
                "better": f"{self.tried[0]:,} or less",
                "worse": f"over {self.tried[-1]:,}",
                "nothing": NOTHING,
                "rounding": ROUNDING,
            }
            return words[self.match.outcome]
        if self.is_moot:
            return f"{self.match.budget:,.0f}"
        percent = round(100 * self.share)
        change = f"{abs(percent)} % {'less' if percent > 0 else 'more'}" if percent else "the same"
        return f"{self.match.budget:,.0f}, {change}"

    @property
    def full_text(self) -> str:
        """The same with what it means: `64 or less (already reached at the smallest budget)`."""
        meaning = MEANINGS.get(self.match.outcome)
        return f"{self.text} ({meaning})" if meaning else self.text


def nobody_answers(result: RunResult) -> bool:
    """Whether an answer was looked for and no point but the full cache gives it."""
    counts = tally(result.variants)
    return counts.missed + counts.cut > 0 and not counts.answered


def savings(result: RunResult, target: Curve, figure: Figure) -> list[Saving]:
    """For every other curve and every point of `target`: the budget of equal quality."""
    wanted, is_moot = target.values(result, figure), nobody_answers(result)
    floor = floor_by_figure(result.floor).get(figure.key)
    rounded = {budget for budget, value in wanted if floor is not None and value <= floor}
    compared = [
        replace(saving, is_moot=is_moot)
        for curve in curves(result)
        if curve != target
        for saving in savings_of(curve, curve.values(result, figure), target, wanted, figure)
    ]
    unsure = Match(None, "rounding")
    return [
        replace(each, match=unsure) if each.tried and each.target_budget in rounded else each
        for each in compared
    ]


def savings_of(
    curve: Curve, points: Points, target: Curve, wanted: Points, figure: Figure
) -> list[Saving]:
    """What one curve needs for every point of another, from values that have been read."""
    tried, lower = tuple(budget for budget, _ in points), figure.better == "lower"
    return [
        Saving(curve, target, budget, tried, matching_budget(points, value, lower=lower))
        for budget, value in wanted
    ]
