"""Every sentence of a verdict, of one sample and of many. No torch.

Which of them hold is in `verdict.py`, `decide.py` and `decision.py`.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from ckv_core.experiment.decide import PointDecision, fewest_sources, least_tolerance
from ckv_core.experiment.stats import Interval

# --- one sample ---------------------------------------------------------------------------

NOTHING_TO_JUDGE = (
    "Without the full cache and without an expected answer this run does not say what eviction "
    "changed: add one of the two."
)
NO_METHOD_FINISHED = "The full cache has finished, and no variant that could be compared with it."
ONLY_FULL = "Only the full cache ran{}: add a method to compare."
FULL_DOES = {
    "answered": " and answers correctly",
    "missed": " and misses the expected answer",
    "cut": ", cut before an answer",
}
DOES = {True: "answers correctly", False: "writes the full cache's text"}  # by answer or text
PLACE = "{} of the KV cache"
NOTHING_EVICTED = "Nothing was evicted: the budget holds the whole prompt."
ALL_ALIKE = "All methods do equally here. Try a {} budget to see a difference."
LEFT_OUT = "{} left out: the run ended before {} did."
ONE_PROMPT = "One prompt only: run a study before you decide."
HARDER_THAN_THE_MODEL = "Use a larger model or an easier question."
NO_ANSWER = "No expected answer was given, so a different output need not be a worse one."
LOWER_L1 = "In {:,} of {} the method that {} had the lower perturbation."
ROUNDING = "{} of {}: below this run's rounding floor{}, so eviction need not have moved it."
# Of several budgets.
NO_TEXT = (
    "This sweep generated no text: it says how far eviction moves the model, and not who still "
    "answers."
)
GENERATE = "Generate text to see the smallest budget that still answers."
MORE_SAMPLES = "One text only: run more samples before you decide."
ALL_CUT = "{} was cut before an answer, at every budget."
NO_POINT = "{} {}, up to {}."
EVERY_POINT = "{} {} at every budget, down to {}."
NEEDS_LEAST = "{} needs the smallest budget: it {}"
NEED_LEAST = "{} need the smallest budget: they {}"
SAME_BUDGET = "{} need the same budget: they {}"
FROM_ON = "from {} on"
NEVER = "{} {} at every budget tried."
EXCEPTION = "{} {} at {} but not at {}."
MORE_EXCEPTIONS = "So do {}: there is no clear limit."


class Does(NamedTuple):
    """What methods do at a budget: one, several, one that does not, and (one, several) never."""

    one: str
    many: str
    one_not: str
    never: tuple[str, str]


OF_SWEEP = {  # by answer or text
    True: Does("answers", "answer", "does not answer", ("misses", "miss")),
    False: Does(
        "writes the full cache's text",
        "write the full cache's text",
        "does not write the full cache's text",
        ("differs", "differ"),
    ),
}

# --- many samples -------------------------------------------------------------------------

FULL_SCORE = "The full cache scores {:.0f} of 100."
READ_LATER = "No decision yet: this study is read once, when all its {:,} samples are done."
NO_RESULT = "There is no result yet."
NOT_ENOUGH = "Cannot tell yet: a decision needs two samples with all methods and budgets done."
FULL_CUT = "The full cache's own answers all stopped at the limit of {:,} new tokens."
# Where not even a method that answers nothing would be found to lose.
LOW_FULL = (
    "The full cache scores {:.0f} of 100, too low to see a loss of {}. No method can be confirmed. "
    "Use a larger model or an easier task."
)
WEAK_FULL = (
    "The full cache scores {:.0f} of 100, below {:.0f}: what it cannot answer says little about "
    "eviction."
)
CUT = (
    "{:,} of {:,} answers stopped at the limit of {:,} new tokens. Their scores are unknown, so no "
    "claim may depend on them. {}"
)
FAILED = "{} failed and {}: {}"
FAILS = {True: "fail each time", False: "may pass; run the study again for them"}  # for good
TOLERANCE_CHANGED = (
    "The tolerance was changed; before it was {} points. The 95 % hold for a tolerance that is set "
    "before the results."
)
OPEN_RESULTS = (
    "{:,} results are not there yet; resume the study. {:,} of {:,} {} count so far: in the "
    "study's random order, those before the first that is not done."
)
ADDED = "{} added to texts that counted already: in tables only."
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


def of_method(name: str, budget: str, found: PointDecision | None) -> str:
    """One line of a list of methods; `found` is None where too few results count."""
    return f"{name}{' ' if found else ': '}{method_note(budget, found)}."


def method_note(budget: str, found: PointDecision | None) -> str:
    """The same behind the name."""
    if found is None:
        return "no decision yet"
    at = f"at {budget_words(budget)}"
    if found.state == "keeps":
        return f"{at}: loses at most {points(found.at_most)}"
    if found.state == "loses":
        return f"{at}: loses at least {points(found.at_least or 0.0)}"
    return f"{at}: the loss may be up to {points(found.at_most)}"


def decision_note(tolerance: float, n: int) -> str:
    """What stands under the table of a decision."""
    return (
        "Loss: the full cache's score minus the method's, points of 100, mean over the "
        f"{n:,} samples that count; cut and failed results are left out of it. At most and at "
        "least: with 95 % confidence for all methods and budgets together, however often you "
        "look; cut and failed results count as the worst case. Keeps: at most is not over "
        f"{100 * tolerance:g}; loses: at least is not below it. Samples in all: if the loss stays."
    )


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


def l1_finding(moved: Interval) -> str:
    ends = "" if moved.low is None else f", 95 % interval {moved.low:z.2f} to {moved.high:z.2f}"
    return (
        "Rank correlation of lower head L1 with a better score, among methods of one sample and "
        f"budget: {moved.mean:z.2f} (n = {moved.n} samples where both vary{ends})."
    )


# --- words --------------------------------------------------------------------------------


def budget_words(budget: str) -> str:
    """`10 % of the cache`, `128 tokens`."""
    if budget.endswith("%"):
        return f"{budget.removesuffix('%').strip()} % of the cache"
    return f"{budget} tokens"


def points(share: float) -> str:
    """A loss in points, without its sign."""
    amount = f"{abs(100 * share):.1f}"
    return f"{amount.removesuffix('.0')} point{'' if amount == '1.0' else 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """`A`, `A and B`, `A, B and C`; of more than `most` the first ones and how many are left."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def counted(count: int, one: str, many: str = "") -> str:
    """`1 token`, `2 tokens`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """Without decimals, but not 0 or 100 of what is neither."""
    value = 100 * share
    is_near = 0 < value < 1 or 99 < value < 100
    return f"{value:.1f} %" if is_near else f"{value:.0f} %"


def size(least: int, most: int, full: int) -> str:
    """`34.7 of 86.8 MiB`, of bytes."""
    unit, name = (2**20, "MiB") if full >= 2**20 else (2**10, "KiB")
    own = spread(f"{least / unit:.1f}", f"{most / unit:.1f}")
    return f"{own} of {full / unit:.1f} {name}"


def spread(low: str, high: str) -> str:
    """`40 %` where both are the same, else `38 to 41 %`."""
    if low == high:
        return low
    return f"{low.removesuffix(' %')} to {high}"
