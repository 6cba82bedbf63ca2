"""The verdict on a run, in sentences of `sentences.py`. No torch.

Of one sample answers decide where one is expected; else whether a variant writes the full cache's
text. Perturbation decides nothing: it stands beside the outcome. `decision.py` has many samples.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from ckv_core.experiment import sentences
from ckv_core.experiment.names import display_names
from ckv_core.experiment.points import BUDGET_UNITS, Curve
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.rounding import in_type, within_floor
from ckv_core.experiment.sentences import counted, listed, percent, spread
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

_amount = attrgetter("amount")  # of a budget
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
        index: of the variant in its run, of the curve's first point, or of many samples the place
            of the settings in the table.
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
    verdict = _of_several_budgets(result) if result.kind == "sweep" else _of_one_budget(result)
    regimes = run_regimes(result)
    if verdict is None or not regimes.head:
        return verdict

    def marked(group: Group) -> Group:
        members = (replace(m, regime=regimes.marks[m.index]) for m in group.members)
        return replace(group, members=tuple(members))

    return replace(verdict, regimes=regimes.head, groups=tuple(map(marked, verdict.groups)))


# --- one budget ---------------------------------------------------------------------------


def _of_one_budget(result: RunResult) -> Verdict | None:
    """The verdict on a run that is over; None where nothing was generated."""
    full, counts = full_of(result.variants), tally(result.variants)
    if all(v.stopped is None for v in result.variants):
        return None
    states = _states(result.variants)
    if not states and full is None:
        return Verdict(headline=sentences.NOTHING_TO_JUDGE)
    if not states and full is not None:
        does = sentences.FULL_DOES.get(full.outcome or "", "")
        is_alone = all(variant.method == "full" for variant in result.variants)
        alone = sentences.ONLY_FULL.format(does)
        return Verdict(headline=alone if is_alone else sentences.NO_METHOD_FINISHED)
    return Verdict(
        headline=_headline(result, counts, [*states]),
        groups=(*_baseline(result, counts), *_groups(result, counts, states)),
        findings=tuple(_findings(result.variants, states, counts)),
        cautions=tuple(_cautions(result, counts, states)),
    )


def _states(variants: Sequence[VariantResult]) -> dict[int, State]:
    """By index, what each variant that evicts came to; those that have not finished have none."""
    by_answer = tally(variants).by_answer
    return {
        index: state
        for index, variant in enumerate(variants)
        if variant.method != "full" and (state := _state(variant, by_answer)) is not None
    }


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
    return sentences.PLACE.format(part, spread(low, high), full / unit, name)


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
        places = [(at, variants[at].first_difference) for at in indices]
        first = {at: math.inf if place is None else place for at, place in places}
        indices.sort(key=first.__getitem__, reverse=True)
        if indices:
            members = (Member(i, names[i], _note(variants[i], counts.by_answer)) for i in indices)
            yield Group(state, label, tuple(members), outcome)


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
    came_to = {*states.values()}
    other = "smaller" if came_to == {"kept"} else "larger" if came_to == {"lost"} else ""
    if all(r is not None and r.cache_bytes == r.full_cache_bytes for r in receipts):
        yield sentences.NOTHING_EVICTED
    elif other and len(states) > 1 and not _is_beyond_eviction(counts):
        yield sentences.ALL_ALIKE.format(other)
    yield from _rounding(result)
    unfinished = sum(v.stopped is None and not v.failure for v in result.variants)
    if unfinished:
        are = counted(unfinished, "variant is", "variants are")
        yield sentences.LEFT_OUT.format(are, "it" if unfinished == 1 else "they")
    yield sentences.ONE_PROMPT


def _outcome_cautions(result: RunResult, counts: Tally) -> Iterable[str]:
    """Cautions that follow from the full cache's outcome and from cut texts."""
    if counts.full == "missed":
        yield sentences.HARDER_THAN_THE_MODEL
    elif counts.full == "none":
        yield sentences.NO_ANSWER
    if cut := cut_note(result.variants):
        yield cut


def _is_beyond_eviction(counts: Tally) -> bool:
    """More of a cache that misses the answer does not bring it."""
    return counts.by_answer and counts.full not in (None, "answered")


def _findings(
    variants: Sequence[VariantResult], states: Mapping[int, State], counts: Tally
) -> Iterator[str]:
    """Of two variants of one budget with different outcomes, which one moves heads less."""
    if _is_beyond_eviction(counts):
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
        of, does = counted(len(pairs), "head-to-head comparison"), sentences.DOES[counts.by_answer]
        yield sentences.LOWER_L1.format(lower, of, does)


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
        yield sentences.ROUNDING.format(labels, listed(names), in_type(result))


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

    @property
    def member(self) -> Member:
        note = "" if self.lost_above is None else f"not at {self.lost_above}"
        if all(state == "cut" for _, state in self.states):
            note = "cut each time"
        return Member(self.curve.first.index, self.name, note)


def _of_several_budgets(result: RunResult) -> Verdict | None:
    """The verdict on a sweep that is over; None where nothing was measured."""
    full = full_of(result.variants)
    lines = curves(result)
    if not lines:
        return None
    if full is None or not any(v.stopped for v in result.variants if v.method != "full"):
        return Verdict(
            headline=sentences.NO_TEXT, cautions=(*_rounding(result), sentences.GENERATE)
        )
    counts = tally(result.variants)
    reached = [
        [(at, state) for at, row in c.rows if (state := _state(row.variants[0], counts.by_answer))]
        for c in lines
    ]
    reaches = [_Reach(c, tuple(each)) for c, each in zip(lines, reached, strict=True) if each]
    if not reaches:
        return None
    does, states = sentences.DOES[counts.by_answer], _states(result.variants)
    return Verdict(
        headline=f"{counts.about_full} {_sweep_headline(result, reaches, does)}".strip(),
        groups=(*_baseline(result, counts), *_sweep_groups(result, reaches)),
        findings=(*_exceptions(reaches, does), *_findings(result.variants, states, counts)),
        cautions=(*_rounding(result), *_outcome_cautions(result, counts), sentences.BUDGETS_TRIED),
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


def _sweep_headline(result: RunResult, reaches: Sequence[_Reach], does: str) -> str:
    points = [state for reach in reaches for _, state in reach.states]
    tried = sorted({b for reach in reaches for b, _ in reach.states}, key=_amount)
    if set(points) == {"cut"}:
        return sentences.ALL_CUT
    if "kept" not in points:
        return sentences.NO_POINT.format(does, _budget(result, tried[-1]))
    if set(points) == {"kept"}:
        return sentences.EVERY_POINT.format(does, _budget(result, tried[0]))
    least = min((each for r in reaches if (each := r.smallest) is not None), key=_amount)
    first = [reach.name for reach in reaches if reach.smallest == least]
    who = "all" if 1 < len(first) == len(reaches) else listed(first)
    return sentences.SMALLEST.format(does, _budget(result, least), who)


def _sweep_groups(result: RunResult, reaches: Sequence[_Reach]) -> Iterable[Group]:
    """One per smallest budget, rising; then those that no budget helps."""
    budgets = sorted({each for r in reaches if (each := r.smallest) is not None}, key=_amount)
    for budget in budgets:
        members = tuple(r.member for r in reaches if r.smallest == budget)
        yield Group("kept", f"From {_budget(result, budget)}", members)
    none = tuple(reach.member for reach in reaches if reach.smallest is None)
    if none:
        most = max((b for reach in reaches for b, _ in reach.states), key=_amount)
        is_cut = all(state == "cut" for reach in reaches for _, state in reach.states)
        yield Group("cut" if is_cut else "lost", f"Not even with {_budget(result, most)}", none)


def _budget(result: RunResult, budget: Budget) -> str:
    """`256 entries per KV head (17 % of the prompt)`; `4MiB` where budgets were given in bytes."""
    if budget.unit != "tokens":
        return str(budget)
    whole = result.prompt.compressed_tokens if result.prompt else 0
    share = f" ({percent(min(1.0, budget.amount / whole))} of the prompt)" if whole else ""
    return f"{budget.amount:,.0f} {BUDGET_UNITS[budget.unit]}{share}"


def _exceptions(reaches: Sequence[_Reach], does: str) -> Iterable[str]:
    """Where a lower budget does and a higher one does not."""
    odd = [reach for reach in reaches if reach.lost_above is not None]
    for reach in odd[:MOST_NAMED]:
        yield sentences.EXCEPTION.format(reach.name, does, reach.smallest, reach.lost_above)
    if len(odd) > MOST_NAMED:
        yield sentences.MORE_EXCEPTIONS.format(counted(len(odd) - MOST_NAMED, "more line"))
