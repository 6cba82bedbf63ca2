"""What a decision says, in words: every sentence of it is here. No torch."""

from collections.abc import Sequence
from math import ceil

from ckv_core.experiment.decide import PointDecision, fewest_sources, least_tolerance

LEAST_FULL = 0.6  # a task that the full cache cannot do tells little about eviction
STATES = {
    "keeps": "Keeps the score",
    "undecided": "Cannot tell yet",
    "loses": "Loses more than the tolerance",
    "unmeasured": "Too few results count",
}


def kept(name: str, budget: str, at_most: float, tolerance: float, methods: int, of: str) -> str:
    """Of the method with the smallest budget that keeps; `of` names the sources, `160 samples`."""
    among = f" of {methods} methods" if methods > 1 else ""
    return (
        f"{name} keeps the score at {budget_words(budget)}, the smallest confirmed budget{among}. "
        f"It loses at most {points(at_most)} there (accepted: {100 * tolerance:g}; 95 % "
        f"confidence; {of})."
    )


def full_score(score: float) -> str:
    return f"The full cache scores {100 * score:.0f} of 100."


def lost(name: str, budget: str, at_least: float, tolerance: float, methods: int, of: str) -> str:
    """Where every method loses, of the one that loses least at the largest budget."""
    who = "It" if methods == 1 else f"The best of {methods} methods, {name},"
    all_of = "Both methods" if methods == 2 else f"All {methods} methods"
    begin = f"{name} loses" if methods == 1 else f"{all_of} lose"
    return (
        f"{begin} more than {points(tolerance)} at {budget_words(budget)}. {who} loses at least "
        f"{points(at_least)} (95 % confidence, {of}). Try a larger budget."
    )


def undecided(name: str, budget: str, found: PointDecision, n: int, of: str) -> str:
    """Of a point that is neither shown to keep nor to lose."""
    more = settled_by(found, n, of)
    return f"{name} at {budget_words(budget)}: cannot tell yet. {shown(found, of)}{more}"


def shown(found: PointDecision, of: str) -> str:
    """What the samples say of a point so far."""
    if found.loss is None:
        seen = "have no known score"
    elif found.loss > 0:
        seen = f"show a loss of {points(found.loss)}"
    else:
        seen = f"show a gain of {points(found.loss)}" if found.loss else "show no loss"
    return f"The {of} {seen}; the true loss may be up to {points(found.at_most)} (95 % confidence)."


def settled_by(found: PointDecision, n: int, of: str) -> str:
    """How many samples would decide a point; begins with a space."""
    if found.needed is None:
        return " More samples would not help: this loss is too close to the tolerance."
    about = 10 * ceil(max(found.needed, n + 1) / 10)
    what = of.rpartition(" ")[2].removesuffix("s") + "s"
    stays = f"the loss stays at {points(found.loss)}" if found.loss else "nothing more is lost"
    return f" About {about:,} {what} in all would decide, if {stays}."


def of_method(name: str, budget: str, found: PointDecision) -> str:
    """One line of a list of methods."""
    at = f"{name} at {budget_words(budget)}"
    if found.state == "keeps":
        return f"{at}: loses at most {points(found.at_most)}."
    if found.state == "loses":
        return f"{at}: loses at least {points(found.at_least or 0.0)}."
    return f"{at}: the loss may be up to {points(found.at_most)}."


def decision_note(tolerance: float, n: int) -> str:
    """What stands under the table of a decision."""
    return (
        "Loss: the full cache's score minus the method's, points of 100, mean over the "
        f"{n:,} samples that count; cut and failed results are left out of it. At most and at "
        "least: with 95 % confidence for all methods and budgets together, however often you "
        "look; cut and failed results count as the worst case. Keeps: at most is not over "
        f"{100 * tolerance:g}; loses: at least is not below it. Samples in all: if the loss stays."
    )


def unmeasured(name: str) -> str:
    return f"{name}: no decision yet."


def nothing_counts(results: int, limit: int, *, all_cut: bool) -> str:
    """Where fewer than two sources count; `all_cut`: all texts of the full cache."""
    if all_cut:
        return f"The full cache's own answers all stopped at the limit of {limit:,} new tokens."
    if not results:
        return "There is no result yet."
    return "Cannot tell yet: a decision needs two samples with all methods and budgets done."


def read_later(of: str) -> str:
    return f"No decision yet: this study is read once, when all its {of} are done."


def low_full(score: float, tolerance: float) -> str:
    """Where not even a method that answers nothing would be found to lose."""
    return (
        f"The full cache scores {100 * score:.0f} of 100, too low to see a loss of "
        f"{points(tolerance)}. No method can be confirmed. Use a larger model or an easier task."
    )


def weak_full(score: float) -> str:
    return (
        f"The full cache scores {100 * score:.0f} of 100, below {100 * LEAST_FULL:.0f}: what it "
        "cannot answer says little about eviction."
    )


def cut(count: int, of: int, limit: int, advice: str) -> str:
    begin = f"{count:,} of {of:,} answers stopped at the limit of {limit:,} new tokens."
    return f"{begin} Their scores are unknown, so no claim may depend on them. {advice}"


def can_confirm(n: int, methods: int, tolerance: float, what: str) -> str:
    """What a number of samples can show; empty where it is enough for the tolerance."""
    least, needed = least_tolerance(n, methods), fewest_sources(tolerance, methods)
    if needed is not None and n >= needed:
        return ""
    more = f" For {points(tolerance)} you need {needed:,} {what} or more." if needed else ""
    who = f"{n:,} {what} and {methods} method{'' if methods == 1 else 's'}"
    if least is None:
        return f"With {who} no drop can be confirmed.{more}"
    one_lost = least_tolerance(n, methods, 1)
    if one_lost is None:
        return f"With {who} you can confirm a drop of at most {points(least)}.{more}"
    return (
        f"With {who} you can confirm a drop of at most {points(least)}, or {100 * one_lost:.1f} if "
        f"one answer is lost.{more}"
    )


def open_results(count: int, n: int, of: str) -> str:
    return (
        f"{count:,} results are not there yet; resume the study. {n:,} of {of} count so far: in "
        "the study's random order, those before the first that is not done."
    )


def added(count: int) -> str:
    begin = "1 sample was" if count == 1 else f"{count:,} samples were"
    return f"{begin} added to texts that counted already: in tables only."


def changed_tolerance(before: Sequence[float]) -> str:
    earlier = ", ".join(f"{each:g}" for each in before)
    return (
        f"The tolerance was changed; before it was {earlier} points. The 95 % hold for a tolerance "
        "that is set before the results."
    )


def failed(count: int, reason: str, *, for_good: bool) -> str:
    what = "fail each time" if for_good else "may pass; run the study again for them"
    return f"{count:,} result{'s' if count > 1 else ''} failed and {what}: {reason}"


def budget_words(budget: str) -> str:
    """`10 % of the cache`, `128 tokens`."""
    if budget.endswith("%"):
        return f"{budget.removesuffix('%').strip()} % of the cache"
    return f"{budget} tokens"


def points(share: float) -> str:
    """A loss in points, without its sign."""
    amount = f"{abs(100 * share):.1f}"
    return f"{amount.removesuffix('.0')} point{'' if amount == '1.0' else 's'}"
