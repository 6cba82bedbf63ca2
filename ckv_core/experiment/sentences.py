"""Every sentence of a verdict, of one sample and of many. No torch.

Which of them hold is in `verdict.py`, `decide.py` and `reading.py`.
"""

from collections.abc import Iterable, Sequence

from ckv_core.errors import ConfigError
from ckv_core.experiment.decide import PointDecision, fewest_sources, least_tolerance
from ckv_core.experiment.stats import Interval
from ckv_core.methods.parameters import Budget

# --- one sample ---------------------------------------------------------------------------

NOTHING_TO_JUDGE = (
    "Without the full cache and without an expected answer this run does not say what eviction "
    "changed: add one of the two."
)
NO_REFERENCE = (
    "The full cache was left out, so agreement, perturbation and KL are not measured: compare "
    "answers and memory only."
)
NO_METHOD_FINISHED = "Only the full cache has finished: there is no method to compare with it."
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
EVICTION_DID = "The full cache is correct, so eviction caused {}."
HARDER_THAN_THE_MODEL = "Check the expected answer; else use a larger model or an easier question."
NO_ANSWER = "No expected answer was given, so a different output need not be a worse one."
LOWER_L1 = "In {:,} of {}, the one that {} had the lower perturbation (mean head L1)."
ROUNDING = "{} of {}: below this run's rounding floor{}, so it may be rounding alone."
# Of several budgets.
NO_TEXT = (
    "This run generated no text: it shows how far eviction moves the model, and not which methods "
    "still answer."
)
GENERATE = "Generate text to see the smallest budget that still answers."
MORE_SAMPLES = "One text only: run more samples before you decide."
ALL_CUT = "Cut before an answer, at every budget: {}."
NO_BUDGET = "No method {} at a budget of up to {}: {}."
SMALLEST = "The smallest budget that {}: {}, with {}."
DOES_AT = {True: "still answers", False: "gives the full cache's text"}  # by answer or text

# --- many samples -------------------------------------------------------------------------

FULL_SCORE = "The full cache scores {:.0f} of 100 on {}."
LARGER_BUDGET = "Try a larger budget."
READ_LATER = "No decision yet: this run is decided once, when all its {:,} samples are done."
NO_RESULT = "There is no result yet."
NOT_ENOUGH = "Cannot tell yet: a decision needs two samples with all methods and budgets done."
FULL_CUT = "The full cache's own answers all stopped at the limit of {:,} new tokens."
# Where not even a method that answers nothing would be found to lose.
LOW_FULL = (
    "No method can be confirmed: the full cache scores {:.0f} of 100, too low to see a loss of {}."
)
EASIER = "Use a larger model or an easier task."
WEAK_FULL = (
    "The full cache scores {:.0f} of 100, below {:.0f}: what it cannot answer says little about "
    "eviction."
)
CUT = (
    "{:,} of {:,} answers stopped at the limit of {:,} new tokens. Their scores are unknown, so "
    "each claim assumes the worst for them. {}"
)
PARTLY = (
    "Of {} the full cache gives some of the expected answers, and the metric string_match wants "
    "all. Where any of them will do, take string_match_part and another name for the run."
)
FAILED = "{} failed and {}: {}"
FAILS = {True: "fail each time", False: "may pass if the run is resumed"}  # for good
TOLERANCE_CHANGED = (
    "The tolerance was changed; before it was {} points. The 95 % confidence holds only for a "
    "tolerance that was set before the results."
)
BASELINE_CHANGED = (
    "The baseline was changed; before it was {}. The 95 % confidence holds only for a baseline "
    "that was set before the results."
)
OPEN_RESULTS = (
    "{:,} results are not there yet; resume the run if it has stopped. {:,} of {:,} {} count so "
    "far: in the run's random order, those before the first unfinished one."
)
ADDED = "{} added to texts that counted already: they are in tables only."
_SMALLER = (0.05, 0.02)  # losses that a reader may want to exclude next
_UNITS = {"percent": " %", "tokens": " tokens", "mib": " MiB"}
LEAST_FULL = 0.6  # a task that the full cache cannot do tells little about eviction
STATES = {
    "keeps": "Keeps the score",
    "undecided": "Cannot tell yet",
    "loses": "Loses more than the tolerance",
    "unmeasured": "Too few results",
}


def against(sentence: str, name: str) -> str:
    """The same sentence about the baseline of this name in place of the full cache."""
    if name == "Full cache":
        return sentence
    return sentence.replace("The full cache", name).replace("the full cache", name)


def kept(name: str, budget: str, at_most: float, tolerance: float) -> str:
    """The headline where a method keeps the score; `at_most` is a share of the score, 0 to 1."""
    return (
        f"{name} at {budget_words(budget)} stays within your tolerance of {points(tolerance)}: "
        f"it loses at most {amount(at_most)} (95 %)."
    )


def lost(name: str, budget: str, at_least: float, tolerance: float, methods: int) -> str:
    """The headline where every method loses; it names the one that loses least."""
    who = {1: f"{name} loses", 2: "Both methods lose"}.get(methods, f"All {methods} methods lose")
    best = "" if methods == 1 else f"{name}, the best, loses "
    at = f"{points(tolerance)} at {budget_words(budget)}"
    return f"{who} more than {at}: {best}at least {amount(at_least)} (95 %)."


def undecided(name: str, budget: str, at_most: float, tolerance: float) -> str:
    """The headline where the samples decide nothing yet."""
    return (
        f"Cannot tell yet: {name} at {budget_words(budget)} may lose up to {points(at_most)} "
        f"(95 %), and your tolerance is {amount(tolerance)}."
    )


def next_budget(name: str, budget: str, found: PointDecision, n: int) -> str:
    """A sentence on the next smaller budget than the one that keeps."""
    at = f"At {budget_words(budget)} {name}"
    if found.state == "loses":
        return f"{at} loses at least {points(found.at_least or 0.0)}."
    if found.loss is None:
        return f"{at} {seen(found)}."
    return f"{at} {seen(found)}, so it is too early to tell.{settled_by(found, n)}"


def others(keeping: int, deciding: int, losing: int, tolerance: float) -> str:
    """How many of the other methods came to what; empty without any."""
    count, lose = keeping + deciding + losing, f"more than {points(tolerance)}"
    if losing == count:
        who = "The other method loses" if count == 1 else f"The other {count} methods lose"
        return f"{who} {lose} at every budget tried." if count else ""
    parts = (
        (keeping, "keeps the score too", "keep the score too"),
        (deciding, "cannot be decided yet", "cannot be decided yet"),
        (losing, f"loses {lose}", f"lose {lose}"),
    )
    parts_shown = [f"{many} {one if many == 1 else more}" for many, one, more in parts if many]
    if count == 1:
        return f"The other method {parts_shown[0].removeprefix('1 ')}."
    return f"Of the other {count} methods, {listed(parts_shown)}."


def seen(found: PointDecision) -> str:
    """The loss that the samples show so far, as a verb and its number."""
    if found.loss is None:
        return "has no known score"
    if found.loss > 0:
        return f"lost {points(found.loss)}"
    return f"gained {points(found.loss)}" if found.loss else "lost nothing"


def settled_by(found: PointDecision, n: int, what: str = "samples") -> str:
    """How many samples in all would decide a point that has `n`; begins with a space."""
    if found.needed is None and found.unknown:
        of = counted(found.unknown, f"of {n:,} {what} has", f"of {n:,} {what} have")
        return f" More samples alone would not help: {of} a cut or failed result, counted as lost."
    if found.needed is None:
        return " More samples would not help: this loss is too close to the tolerance."
    sign = "gain" if (found.loss or 0.0) < 0 else "loss"
    stays = f"the {sign} stays at {points(found.loss)}" if found.loss else "nothing more is lost"
    return f" About {max(found.needed, n + 1):,} {what} in all would settle it, if {stays}."


def pill(outcome: str, budget: str, tolerance: float) -> str:
    """The decision on a method as a label of a few words."""
    if outcome == "keeps":
        return f"Keeps from {budget_words(budget)}"
    return f"Loses more than {amount(tolerance)}" if outcome == "loses" else STATES[outcome]


def why(budget: str, found: PointDecision) -> str:
    """The loss that a decision rests on, in a few words."""
    if found.state == "keeps":
        return f"loses at most {points(found.at_most)}"
    lost = "no known score" if found.loss is None else f"{points(found.loss)} lost"
    if found.loss is not None and found.loss <= 0:
        lost = "nothing lost"
    at = f"{lost} at {budget_words(budget)}"
    return at if found.state == "loses" else f"{at}, could be up to {amount(found.at_most)}"


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
        "Loss: the full cache's score minus the method's, in points of 100, mean over the "
        f"{n:,} samples that count, without cut and failed results. The two bounds hold "
        "with 95 % confidence for all methods and budgets together, however often you look. "
        "They count cut and failed results as the worst case. A method keeps the score if it "
        f"loses at most {100 * tolerance:g}. It loses more than the tolerance if it loses at "
        "least as much. The number of samples in all assumes that the loss stays."
    )


def can_confirm(n: int, methods: int, tolerance: float, what: str = "samples") -> str:
    """Sentences on the loss that `n` samples can exclude, and on how many a smaller one takes."""
    least, one_lost = least_tolerance(n, methods), least_tolerance(n, methods, 1)
    needed = {share: fewest_sources(share, methods) for share in (tolerance, *_SMALLER)}
    larger = [(share, total) for share, total in needed.items() if total and total > n][:2]
    first, *others = [f"{points(share)} takes {total:,}" for share, total in larger] or [""]
    rest = f" Confirming {'; '.join((f'{first} {what} in all', *others))}." if first else ""
    who = f"With {counted(methods, 'method')}, {counted(n, what.removesuffix('s'), what)}"
    if least is None:
        return f"{who} can confirm no loss at all.{rest}"
    one = "" if one_lost is None else f" ({amount(one_lost)} if one answer is lost)"
    return f"{who} can confirm that a method loses at most {points(least)}{one}.{rest}"


def l1_finding(moved: Interval) -> str:
    ends = "" if moved.low is None else f", 95 % interval {moved.low:z.2f} to {moved.high:z.2f}"
    return (
        "Rank correlation of lower head L1 with a better score, among methods of one sample and "
        f"budget: {moved.mean:z.2f} (n = {moved.n} samples where both vary{ends})."
    )


# --- words --------------------------------------------------------------------------------


def budget_words(budget: Budget | str | None) -> str:
    """`10 %`, `1,200 tokens`, `4 MiB`; `all` for None, and what is no budget as it was written."""
    if budget is None:
        return "all"
    try:
        own = Budget.parse(budget) if isinstance(budget, str) else budget
    except ConfigError:
        return str(budget)
    return f"{own.amount:,.10g}{_UNITS[own.unit]}"


def amount(share: float) -> str:
    """A loss in points of 100, without its sign and unit."""
    return f"{abs(100 * share):.1f}".removesuffix(".0")


def points(share: float) -> str:
    """The same with its unit."""
    return f"{amount(share)} point{'' if amount(share) == '1' else 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """`A`, `A and B`, `A, B and C`; of more than `most` the first ones and how many are left."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def clipped(text: str, most: int) -> str:
    """A text on one line, cut after so many characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[:most].rstrip()}…"


def spanned(counts: Iterable[int]) -> str:
    """`5`, or `4 to 6` where they differ."""
    there = sorted({*counts})
    return " to ".join(f"{count:,}" for count in dict.fromkeys((there[0], there[-1])))


def counted(count: int, one: str, many: str = "") -> str:
    """`1 token`, `2 tokens`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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
