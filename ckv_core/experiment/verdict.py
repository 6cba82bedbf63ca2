"""The verdict on a run, in sentences of `sentences.py`. No torch.

Of one sample answers decide where one is expected; else whether a variant writes the full cache's
text. Perturbation decides nothing: it stands beside the outcome. `reading.py` has many samples.
Several budgets are a grid: what each method came to at each of them.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ckv_core.base.percent import percent
from ckv_core.experiment import sentences
from ckv_core.experiment.names import curve_name, display_names
from ckv_core.experiment.points import Row
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.rounding import in_type, within_floor
from ckv_core.experiment.runs import together
from ckv_core.experiment.sentences import budget_words, counted, listed, spread
from ckv_core.methods.parameters import Budget
from ckv_core.records.chain import mean_head_l1
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import (
    OUTCOME_WORDS,
    STATES,
    State,
    Tally,
    cut_note,
    full_of,
    outcome_word,
    state_of,
    tally,
)
from ckv_core.records.records import Outcome, Receipt, VariantResult
from ckv_core.records.variants import spec_without

# --- several budgets as a grid: what each method came to at each ---------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """One cell.

    Attributes:
        index: of the variant in its run.
        state: None while it is not known, and where no text was generated.
    """

    index: int
    variant: VariantResult
    state: State | None


@dataclass(frozen=True, slots=True)
class Line:
    """One method with one alpha.

    Attributes:
        points: one per budget of the grid; None where the method was not run at it.
    """

    name: str
    points: tuple[Point | None, ...]

    @property
    def first(self) -> Point:
        return next(point for point in self.points if point is not None)

    @property
    def states(self) -> list[State]:
        """Those that are known, by rising budget."""
        return [point.state for point in self.points if point and point.state]

    @property
    def smallest(self) -> int | None:
        """Place of the smallest budget that keeps the answer or text; None where none does."""
        kept = (at for at, point in enumerate(self.points) if point and point.state == "kept")
        return next(kept, None)


@dataclass(frozen=True, slots=True)
class Grid:
    """Methods by budgets.

    Attributes:
        budgets: as requested, rising.
        by_answer: whether an answer was expected, so that it decides.
    """

    budgets: tuple[Budget, ...]
    lines: tuple[Line, ...]
    by_answer: bool

    def receipts(self, at: int) -> list[Receipt]:
        """The receipts of all points at one budget."""
        points = [line.points[at] for line in self.lines]
        return [each.variant.receipt for each in points if each and each.variant.receipt]

    @property
    def best_first(self) -> "Grid":
        """The lines by their smallest budget, then by how often they keep it."""

        def rank(line: Line) -> tuple[int, int]:
            least = line.smallest
            most = len(self.budgets)
            return (most if least is None else least, -line.states.count("kept"))

        return Grid(self.budgets, tuple(sorted(self.lines, key=rank)), self.by_answer)


def read_grid(result: RunResult) -> Grid:
    """A run of one sample, whole or partial, in the order of its variants."""
    by_answer = tally(result.variants).by_answer
    # Before all are selected their records do not say the same, and the SPEC alone tells.
    is_known = all(variant.receipt for variant in result.variants)
    lines: dict[Hashable, dict[Budget, Row]] = {}
    rows = together([result]).rows if result.variants else []
    alphas = {row.alpha for row in rows} - {None}
    for row in rows:
        if row.place and (budget := row.identity.budget):
            key = row.place if is_known else spec_without(row.variants[0].spec, "budget")
            lines.setdefault(key, {})[budget] = row
    budgets = _rising({each: row for rows in lines.values() for each, row in rows.items()})

    def point(row: Row | None) -> Point | None:
        if row is None:
            return None
        variant = row.variants[0]
        return Point(row.index, variant, state_of(variant, by_answer=by_answer))

    def line(of: dict[Budget, Row]) -> Line:
        first = next(iter(of.values()))
        name = first.name
        if len(alphas) == 1:  # which tells no line from another
            name = curve_name(first.label, None, spec_without(first.spec, "alpha"))
        return Line(name, tuple(point(of.get(each)) for each in budgets))

    return Grid(budgets, tuple(map(line, lines.values())), by_answer)


def _rising(rows: dict[Budget, Row]) -> tuple[Budget, ...]:
    """By amount, or by entries where units differ."""
    if len({budget.unit for budget in rows}) < 2:
        return tuple(sorted(rows, key=lambda budget: budget.amount))

    def entries(budget: Budget) -> int:
        receipt = rows[budget].variants[0].receipt
        return receipt.budget_tokens if receipt else 0

    return tuple(sorted(rows, key=entries))


def sizes(receipts: Sequence[Receipt]) -> tuple[int, int, int]:
    """Least and most bytes of these caches, and of the full cache."""
    own = [each.cache_bytes for each in receipts]
    return min(own), max(own), max(each.full_cache_bytes for each in receipts)


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
        causes: what the outcome is due to; at several budgets what the other methods need.
        findings: whether lower perturbation went with it.
        cautions: what cannot be concluded.
    """

    headline: str
    regimes: str = ""
    groups: tuple[Group, ...] = ()
    causes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    cautions: tuple[str, ...] = field(default=())

    @property
    def lines(self) -> list[str]:
        """All sentences: the outcome, what it is of, and cautions as notes."""
        groups = (group.sentence for group in self.groups)
        below = filter(None, (self.regimes, *groups, *self.causes, *self.findings))
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
    if not states and (full is None or result.takes_turns):
        return Verdict(headline=sentences.NOTHING_TO_JUDGE)
    if not states and full is not None:
        does = sentences.FULL_DOES.get(full.outcome or "", "")
        is_alone = all(variant.method == "full" for variant in result.variants)
        alone = sentences.ONLY_FULL.format(does)
        return Verdict(headline=alone if is_alone else sentences.NO_METHOD_FINISHED)
    missed = [*states.values()].count("lost")
    causes: tuple[str, ...] = ()
    if counts.by_answer and counts.full == "answered" and missed:
        causes = (sentences.EVICTION_DID.format("the miss" if missed == 1 else "every miss"),)
    return Verdict(
        headline=_headline(result, counts, states),
        groups=(*_baseline(result, counts), *_groups(result, counts, states)),
        causes=causes,
        findings=tuple(_findings(result.variants, states, counts)),
        cautions=tuple(_cautions(result, counts, states)),
    )


def _states(variants: Sequence[VariantResult]) -> dict[int, State]:
    """By index, what each variant that evicts came to; those that have not finished have none."""
    by_answer = tally(variants).by_answer
    found = {i: state_of(v, by_answer=by_answer) for i, v in enumerate(variants)}
    return {i: state for i, state in found.items() if state and variants[i].method != "full"}


def _place(result: RunResult, indices: Iterable[int]) -> str:
    """`40 % of the KV cache (34.7 of 86.8 MiB)`; empty where not known."""
    known = [result.variants[index].receipt for index in indices]
    receipts = [each for each in known if each is not None and each.full_cache_bytes]
    if not receipts:
        return ""
    shares = [each.cache_bytes / each.full_cache_bytes for each in receipts]
    part = spread(percent(min(shares)), percent(max(shares)))
    return f"{sentences.PLACE.format(part)} ({sentences.size(*sizes(receipts))})"


def _headline(result: RunResult, counts: Tally, states: Mapping[int, State]) -> str:
    """First that the full cache misses the answer, if it does; then how many answer, with what."""
    indices = [*states]
    judged = [i for i in indices if counts.by_answer or result.variants[i].agreement is not None]
    one = display_names(result.variants)[judged[0]] if len(judged) == 1 else ""
    keep = [i for i in indices if states[i] == "kept"]
    phrase, place = counts.phrase(one=one), _place(result, keep or indices)
    if counts.about_full:  # two sentences are long enough
        place = place.partition(" (")[0]
    phrase = phrase or f"{counted(counts.failed, 'method')} failed"
    if counts.by_answer and not counts.cut and not counts.failed:
        phrase += f" with {place}" if place else ""
    else:
        inside = phrase if one else phrase[0].lower() + phrase[1:]
        place = _place(result, indices).partition(" (" if counts.about_full else "\0")[0]
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
    if result.takes_turns:
        yield sentences.NO_REFERENCE
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
        are = counted(unfinished, "method is", "methods are")
        yield sentences.LEFT_OUT.format(are, "it" if unfinished == 1 else "they")
    yield sentences.MORE_SAMPLES


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
        of = counted(len(pairs), "pair of methods", "pairs of methods")
        does = sentences.DOES[counts.by_answer]
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


def _of_several_budgets(result: RunResult) -> Verdict | None:
    """The verdict on a sweep that is over; None where nothing was measured."""
    full, grid = full_of(result.variants), read_grid(result)
    if not grid.lines:
        return None
    if full is None or not any(v.stopped for v in result.variants if v.method != "full"):
        return Verdict(
            headline=sentences.NO_TEXT, cautions=(*_rounding(result), sentences.GENERATE)
        )
    lines = [line for line in grid.lines if line.states]
    if not lines:
        return None
    counts, states = tally(result.variants), _states(result.variants)
    headline = _smallest_budget(grid, lines)
    return Verdict(
        headline=f"{counts.about_full} {headline}".strip(),
        causes=tuple(_other_budgets(grid, lines)),
        findings=tuple(_findings(result.variants, states, counts)),
        cautions=(*_outcome_cautions(result, counts), sentences.MORE_SAMPLES, *_rounding(result)),
    )


def _smallest_budget(grid: Grid, lines: Sequence[Line]) -> str:
    """The smallest budget that keeps it, and the methods that do at it."""
    does, every = sentences.DOES_AT[grid.by_answer], listed([line.name for line in lines])
    if all({*line.states} == {"cut"} for line in lines):
        return sentences.ALL_CUT.format(every)
    places = _places(lines)
    if not places:
        return sentences.NO_BUDGET.format(does, _at(grid, len(grid.budgets) - 1), every)
    return sentences.SMALLEST.format(does, _at(grid, places[0]), _names(lines, places[0]))


def _other_budgets(grid: Grid, lines: Sequence[Line]) -> Iterator[str]:
    """What the others need, by rising budget; then those that no budget helps."""
    places = _places(lines)
    needs = [f"{budget_words(grid.budgets[at])} with {_names(lines, at)}" for at in places[1:]]
    if places and any(line.smallest is None for line in lines):
        needs.append(f"none with {_names(lines, None)}")
    if needs:
        yield f"Of the others: {'; '.join(needs)}."


def _places(lines: Sequence[Line]) -> list[int]:
    """The smallest budgets of all methods, rising."""
    return sorted({at for line in lines if (at := line.smallest) is not None})


def _names(lines: Sequence[Line], smallest: int | None) -> str:
    return listed([line.name for line in lines if line.smallest == smallest])


def _at(grid: Grid, at: int) -> str:
    """`10 % (8.7 of 86.8 MiB)`."""
    place, receipts = budget_words(grid.budgets[at]), grid.receipts(at)
    return f"{place} ({sentences.size(*sizes(receipts))})" if receipts else place
