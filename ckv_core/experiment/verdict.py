"""What a run of one sample came to, in sentences made from its metrics. No torch.

Answers decide where one is expected; else whether a variant writes the full cache's text.
Perturbation decides nothing: it stands beside the outcome.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ckv_core.experiment.names import display_names
from ckv_core.experiment.points import BUDGET_UNITS, Curve
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.rounding import in_type, within_floor
from ckv_core.experiment.sweep import AlphaOptimum, curves
from ckv_core.methods.parameters import Budget
from ckv_core.records.chain import mean_head_l1
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import (
    OUTCOME_WORDS,
    Tally,
    cut_note,
    full_of,
    outcome_word,
    tally,
    writes_same_text,
)
from ckv_core.records.records import Outcome, VariantResult

MOST_NAMED = 3  # exceptions in sentences of their own
# Sign of a group. kept: the answer, or the full cache's text; cut: neither right nor wrong.
State = Literal["kept", "lost", "cut"]
STATES: dict[Outcome | None, State] = {
    "answered": "kept",
    "missed": "lost",
    "cut": "cut",
    "failed": "cut",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One variant or curve.

    Attributes:
        index: of the variant in its run, or of the curve's first point.
        note: a few words beside the name; may be empty.
        regime: of its method, where the verdict sets both beside one another.
    """

    index: int
    name: str
    note: str = ""
    regime: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Those of one outcome.

    Attributes:
        outcome: where answers decide, and one of the table's column; else None.
    """

    state: State
    label: str
    members: tuple[Member, ...]
    outcome: Outcome | None = None

    @property
    def sentence(self) -> str:
        """As text: `Missed: SnapKV (first differs at token 13); AdaKV.`."""
        notes = ((m.name, [part for part in (m.regime, m.note) if part]) for m in self.members)
        texts = (f"{name} ({', '.join(parts)})" if parts else name for name, parts in notes)
        return f"{self.label}: {'; '.join(texts)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out.

    Attributes:
        headline: the outcome in one sentence.
        regimes: that query-aware and query-agnostic methods stand beside one another; or empty.
        groups: the full cache, then the variants by outcome; the best first.
        findings: whether lower perturbation went with it, and what contradicts itself.
        cautions: what cannot be concluded.
    """

    headline: str
    regimes: str = ""
    groups: tuple[Group, ...] = ()
    findings: tuple[str, ...] = ()
    cautions: tuple[str, ...] = field(default=())

    @property
    def lines(self) -> list[str]:
        """All sentences: the outcome, what it is of, and cautions as notes."""
        groups = (group.sentence for group in self.groups)
        below = filter(None, (self.regimes, *groups, *self.findings))
        cautions = (f"note: {caution}" for caution in self.cautions)
        return [self.headline, *(f"  {line}" for line in (*below, *cautions))]

    def to_json(self) -> dict[str, Any]:
        groups = [asdict(group) for group in self.groups]
        for group in groups:
            group["variants"] = group.pop("members")
        return asdict(self) | {"groups": groups}


def verdict_of(result: RunResult) -> Verdict | None:
    """Of a comparison or a sweep that is over."""
    verdict = sweep_verdict(result) if result.kind == "sweep" else run_verdict(result)
    regimes = run_regimes(result)
    if verdict is None or not regimes.head:
        return verdict

    def marked(group: Group) -> Group:
        members = (replace(m, regime=regimes.marks[m.index]) for m in group.members)
        return replace(group, members=tuple(members))

    return replace(verdict, regimes=regimes.head, groups=tuple(map(marked, verdict.groups)))


# --- one budget ---------------------------------------------------------------------------


def run_verdict(result: RunResult) -> Verdict | None:
    """What came out of a run that is over; None where nothing was generated."""
    full, counts = full_of(result.variants), tally(result.variants)
    if all(v.stopped is None for v in result.variants):
        return None
    states = _states(result.variants)
    if not states:
        return Verdict(headline=_nothing_judged(result.variants, full))
    return Verdict(
        headline=_headline(result, counts, [*states]),
        groups=(*_baseline(result, counts), *_groups(result, counts, states)),
        findings=tuple(_findings(result.variants, states, counts)),
        cautions=tuple(_cautions(result, counts, states)),
    )


def _states(variants: Sequence[VariantResult]) -> dict[int, State]:
    """By index, what each variant that evicts came to; those that have not finished have none."""
    by_answer = tally(variants).by_answer
    states: dict[int, State] = {}
    for index, variant in enumerate(variants):
        if variant.method != "full" and (state := _state(variant, by_answer)) is not None:
            states[index] = state
    return states


def _state(variant: VariantResult, by_answer: bool) -> State | None:
    """By the answer, or by whether it writes the full cache's text; None where not known."""
    same = writes_same_text(variant)
    if by_answer or variant.failure:
        return STATES.get(variant.outcome)
    return None if same is None else "kept" if same else "lost"


def _place(result: RunResult, indices: Iterable[int]) -> str:
    """`40 % of the KV cache (34.7 of 86.8 MiB)`; empty where not known."""
    known = [result.variants[index].receipt for index in indices]
    receipts = [each for each in known if each is not None and each.full_cache_bytes]
    if not receipts:
        return ""
    shares = [each.cache_bytes / each.full_cache_bytes for each in receipts]
    sizes = [each.cache_bytes for each in receipts]
    full = max(each.full_cache_bytes for each in receipts)
    unit, name = (2**20, "MiB") if full >= 2**20 else (2**10, "KiB")
    low, high = (f"{size / unit:.1f}" for size in (min(sizes), max(sizes)))
    part = spread(percent(min(shares)), percent(max(shares)))
    return f"{part} of the KV cache ({spread(low, high)} of {full / unit:.1f} {name})"


def _nothing_judged(variants: Sequence[VariantResult], full: VariantResult | None) -> str:
    if full is None:
        return (
            "Without the full cache and without an expected answer this run does not say what "
            "eviction changed: add one of the two."
        )
    if any(variant.method != "full" for variant in variants):
        return "The full cache has finished, and no variant that could be compared with it."
    does = {
        "answered": " and answers correctly",
        "missed": " and misses the expected answer",
        "cut": ", cut before an answer",
    }
    return f"Only the full cache ran{does.get(full.outcome or '', '')}: add a method to compare."


def _headline(result: RunResult, counts: Tally, indices: Sequence[int]) -> str:
    """First that the full cache misses the answer, if it does; then how many answer."""
    judged = [i for i in indices if counts.by_answer or result.variants[i].agreement is not None]
    one = display_names(result.variants)[judged[0]] if len(judged) == 1 else ""
    phrase, place = counts.phrase(one=one), _place(result, indices)
    phrase = phrase or f"{counted(counts.failed, 'method')} failed"
    if counts.by_answer and not counts.cut and not counts.failed:
        phrase += f" with {place}" if place else ""
    else:
        inside = phrase if one else phrase[0].lower() + phrase[1:]
        phrase = f"At {place}, {inside}" if place else phrase[0].upper() + phrase[1:]
    return f"{counts.about_full} {phrase}.".strip()


def _baseline(result: RunResult, counts: Tally) -> Iterator[Group]:
    """The full cache alone, where an answer is expected."""
    for at, variant in enumerate(result.variants):
        if variant.method == "full" and variant.outcome in STATES and counts.by_answer:
            member = Member(at, "Full cache", outcome_word(variant))
            yield Group(STATES[variant.outcome], "Baseline", (member,), variant.outcome)


def _groups(result: RunResult, counts: Tally, states: Mapping[int, State]) -> Iterable[Group]:
    """The variants by outcome, the best first."""
    variants, names = result.variants, display_names(result.variants)
    kinds: list[tuple[Outcome | None, State, str]] = [
        (outcome, state, OUTCOME_WORDS[outcome].capitalize()) for outcome, state in STATES.items()
    ]
    if not counts.by_answer:
        same = "Same up to the limit" if counts.full_cut else "Same text"
        kinds = [(None, "kept", same), (None, "lost", "Different output"), kinds[-1]]
    for outcome, state, label in kinds:
        indices = [
            i
            for i in states
            if states[i] == state
            and (variants[i].outcome == outcome if outcome else variants[i].outcome != "failed")
        ]
        # What stays with the full cache longest comes first.
        indices.sort(key=lambda i: _difference(variants[i]), reverse=True)
        if indices:
            members = (Member(i, names[i], _note(variants[i], counts.by_answer)) for i in indices)
            yield Group(state, label, tuple(members), outcome)


def _difference(variant: VariantResult) -> float:
    return math.inf if variant.first_difference is None else variant.first_difference


def _note(variant: VariantResult, by_answer: bool) -> str:
    """From which token on it differs, or why it failed."""
    if variant.outcome == "failed":
        return variant.failure
    parts = ["repeats itself"] if variant.outcome == "cut" and variant.loops else []
    if variant.first_difference is not None:
        parts.append(f"first differs at token {variant.first_difference + 1:,}")
    elif variant.agreement is not None and by_answer:
        parts.append("same text")
    return ", ".join(parts)


def _cautions(result: RunResult, counts: Tally, states: Mapping[int, State]) -> Iterable[str]:
    """What cannot be concluded, the gravest first."""
    yield from _outcome_cautions(result, counts)
    receipts = [result.variants[index].receipt for index in states]
    if all(r is not None and r.cache_bytes == r.full_cache_bytes for r in receipts):
        yield "Nothing was evicted: the budget holds the whole prompt."
    elif len(states) > 1 and (smaller := _other_budget(counts, set(states.values()))):
        yield f"All methods do equally here. Try a {smaller} budget to see a difference."
    yield from _rounding(result)
    unfinished = sum(v.stopped is None and not v.failure for v in result.variants)
    if unfinished:
        are = counted(unfinished, "variant is", "variants are")
        yield f"{are} left out: the run ended before {'it' if unfinished == 1 else 'they'} did."
    yield "One prompt only: run a study before you decide."


def _outcome_cautions(result: RunResult, counts: Tally) -> Iterable[str]:
    """Cautions that follow from the full cache's outcome and from cut texts."""
    if counts.full == "missed":
        yield "Use a larger model or an easier question."
    elif counts.full == "none":
        yield "No expected answer was given, so a different output need not be a worse one."
    if cut := cut_note(result.variants):
        yield cut


def _other_budget(counts: Tally, states: Collection[State]) -> str:
    """Which budget could separate methods of one outcome; empty where none is known to."""
    if counts.by_answer and counts.full not in (None, "answered"):
        return ""  # more of a cache that misses the answer does not bring it
    if states == {"kept"}:
        return "smaller"
    return "larger" if states == {"lost"} else ""


def _findings(
    variants: Sequence[VariantResult], states: Mapping[int, State], counts: Tally
) -> Iterator[str]:
    """Of two variants of one budget with different outcomes, which one moves heads less."""
    if counts.by_answer and counts.full not in (None, "answered"):
        return
    by_budget: dict[int, list[tuple[State, float]]] = {}
    for index, state in states.items():
        moved, receipt = mean_head_l1(variants[index]), variants[index].receipt
        if moved is not None and receipt is not None:
            by_budget.setdefault(receipt.budget_tokens, []).append((state, moved))
    pairs = [
        (kept, lost)
        for points in by_budget.values()
        for one, kept in points
        for other, lost in points
        if (one, other) == ("kept", "lost") and kept != lost
    ]
    if pairs:
        lower = sum(kept < lost for kept, lost in pairs)
        yield (
            f"In {lower:,} of {counted(len(pairs), 'head-to-head comparison')} the method that "
            f"{_does(counts)} had the lower perturbation."
        )


def _does(counts: Tally) -> str:
    return "answers correctly" if counts.by_answer else "writes the full cache's text"


def _rounding(result: RunResult) -> Iterator[str]:
    """What the final hidden L1 and KL cannot say of variants within the run's rounding floor."""
    alone: dict[str, list[str]] = {}
    for index, name in enumerate(display_names(result.variants)):
        receipt = result.variants[index].receipt
        if receipt is not None and receipt.cache_bytes >= receipt.full_cache_bytes:
            continue
        if keys := within_floor(result, index):
            labels = " and ".join(METRICS[key].label for key in keys)
            alone.setdefault(labels, []).append(name)
    for labels, names in alone.items():
        yield (
            f"{labels} of {listed(names)}: below this run's rounding floor{in_type(result)}, so "
            "eviction need not have moved it."
        )


# --- several budgets ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reach:
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
                *_rounding(result),
                "Generate text to see the smallest budget that still answers.",
            ),
        )
    counts = tally(result.variants)
    reaches = [r for curve in lines if (r := _reach(curve, counts.by_answer)).states]
    if not reaches:
        return None
    does, states = _does(counts), _states(result.variants)
    return Verdict(
        headline=f"{counts.about_full} {_sweep_headline(result, reaches, does)}".strip(),
        groups=(*_baseline(result, counts), *_sweep_groups(result, reaches)),
        findings=(
            *_exceptions(reaches, does),
            *_findings(result.variants, states, counts),
        ),
        cautions=(
            *_rounding(result),
            *_outcome_cautions(result, counts),
            "One prompt only, and only the budgets tried: run a study before you decide.",
        ),
    )


def alpha_outcome(result: RunResult, optimum: AlphaOptimum) -> str:
    """What the best fixed alpha does to the outcome, and what the others do; empty if unknown."""
    full = full_of(result.variants)
    by_answer = tally(result.variants).by_answer
    states = {
        a: _state(result.variants[i], by_answer)
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


def _reach(curve: Curve, by_answer: bool) -> _Reach:
    states = [(budget, _state(row.variants[0], by_answer)) for budget, row in curve.rows]
    return _Reach(curve, tuple((budget, each) for budget, each in states if each is not None))


def _sweep_headline(result: RunResult, reaches: Sequence[_Reach], does: str) -> str:
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


def _sweep_groups(result: RunResult, reaches: Sequence[_Reach]) -> Iterable[Group]:
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


def _member(reach: _Reach) -> Member:
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


def _exceptions(reaches: Sequence[_Reach], does: str) -> Iterable[str]:
    """Where a lower budget does and a higher one does not."""
    odd = [reach for reach in reaches if reach.lost_above is not None]
    for reach in odd[:MOST_NAMED]:
        yield f"{reach.name} {does} at {reach.smallest} and not at {reach.lost_above}."
    if len(odd) > MOST_NAMED:
        yield f"So do {counted(len(odd) - MOST_NAMED, 'more line')}: there is no clear limit."


# --- words ----------------------------------------------------------------------------------


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


def spread(low: str, high: str) -> str:
    """`40 %` where both are the same, else `38 to 41 %`."""
    if low == high:
        return low
    return f"{low.removesuffix(' %')} to {high}"
