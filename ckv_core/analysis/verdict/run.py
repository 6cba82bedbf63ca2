"""The verdict on a comparison."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from ckv_core.analysis.names import display_names
from ckv_core.analysis.verdict.base import (
    STATES,
    Group,
    Member,
    State,
    Verdict,
    counted,
    percent,
    spread,
)
from ckv_core.analysis.verdict.perturbation import findings
from ckv_core.analysis.verdict.rounding import rounding_cautions
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import (
    OUTCOME_WORDS,
    Tally,
    cut_note,
    full_of,
    outcome_word,
    tally,
    writes_same_text,
)
from ckv_core.results.records import Outcome, VariantResult


def run_verdict(result: RunResult) -> Verdict | None:
    """What came out of a run that is over; None where nothing was generated.

    Answers decide where one is expected; else whether a variant writes the full cache's text.
    Perturbation decides nothing: it stands beside the outcome.
    """
    full, counts = full_of(result.variants), tally(result.variants)
    if all(v.stopped is None for v in result.variants):
        return None
    states = states_of(result.variants)
    if not states:
        return Verdict(headline=_nothing_judged(result.variants, full))
    can_judge = counts.by_answer and counts.full in (None, "answered")
    return Verdict(
        headline=_headline(result, counts, [*states]),
        groups=tuple(_groups(result, counts, states)),
        findings=findings(result.variants, states) if can_judge else (),
        cautions=tuple(_cautions(result, counts, states)),
    )


def states_of(variants: Sequence[VariantResult]) -> dict[int, State]:
    """By index, what each variant that evicts came to; those that have not finished have none."""
    by_answer = tally(variants).by_answer
    states: dict[int, State] = {}
    for index, variant in enumerate(variants):
        if variant.method != "full" and (state := state_of(variant, by_answer)) is not None:
            states[index] = state
    return states


def state_of(variant: VariantResult, by_answer: bool) -> State | None:
    """By the answer, or by whether it writes the full cache's text; None where not known."""
    same = writes_same_text(variant)
    if by_answer or variant.failure:
        return STATES.get(variant.outcome)
    return None if same is None else "kept" if same else "lost"


def place_of(result: RunResult, indices: Iterable[int]) -> str:
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
    phrase, place = counts.phrase(one=one), place_of(result, indices)
    phrase = phrase or f"{counted(counts.failed, 'method')} failed"
    if counts.by_answer and not counts.cut and not counts.failed:
        phrase += f" with {place}" if place else ""
    else:
        inside = phrase if one else phrase[0].lower() + phrase[1:]
        phrase = f"At {place}, {inside}" if place else phrase[0].upper() + phrase[1:]
    return f"{counts.about_full} {phrase}.".strip()


def _groups(result: RunResult, counts: Tally, states: Mapping[int, State]) -> Iterable[Group]:
    """The full cache alone, where an answer is expected; then the variants, the best first."""
    variants, names = result.variants, display_names(result.variants)
    full = next((v for v in variants if v.method == "full" and v.outcome in STATES), None)
    if full is not None and counts.by_answer:
        member = Member(variants.index(full), "Full cache", outcome_word(full))
        yield Group(STATES.get(full.outcome, "cut"), "Baseline", (member,), full.outcome)
    kinds: list[tuple[Outcome | None, State, str]] = [
        (outcome, state, OUTCOME_WORDS[outcome].capitalize()) for outcome, state in STATES.items()
    ]
    if not counts.by_answer:
        same = "Same up to the limit" if counts.full_cut else "Same text"
        kinds = [(None, "kept", same), (None, "lost", "Different output"), kinds[-1]]
    for outcome, state, label in kinds:
        indices = [i for i in states if states[i] == state and _is(variants[i], outcome)]
        # Whichever stays with the full cache longest comes first.
        indices.sort(key=lambda index: _first_difference(variants[index]), reverse=True)
        if indices:
            members = (Member(i, names[i], _note(variants[i], counts.by_answer)) for i in indices)
            yield Group(state, label, tuple(members), outcome)


def _first_difference(variant: VariantResult) -> float:
    at = variant.first_difference
    return math.inf if at is None else at


def _is(variant: VariantResult, outcome: Outcome | None) -> bool:
    return variant.outcome == outcome if outcome else variant.outcome != "failed"


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
    yield from outcome_cautions(result, counts)
    receipts = [result.variants[index].receipt for index in states]
    if all(r is not None and r.cache_bytes == r.full_cache_bytes for r in receipts):
        yield "Nothing was evicted: the budget holds the whole prompt."
    elif len(states) > 1 and (smaller := _other_budget(counts, set(states.values()))):
        yield f"All methods do equally here. Try a {smaller} budget to see a difference."
    yield from rounding_cautions(result)
    unfinished = sum(v.stopped is None and not v.failure for v in result.variants)
    if unfinished:
        are = counted(unfinished, "variant is", "variants are")
        yield f"{are} left out: the run ended before {'it' if unfinished == 1 else 'they'} did."
    yield "One prompt only: run a study before you decide."


def outcome_cautions(result: RunResult, counts: Tally) -> Iterable[str]:
    """Cautions that follow from the full cache's outcome and from cut texts."""
    if counts.full == "missed":
        yield "Use a larger model or an easier question."
    elif counts.full == "none":
        yield "No expected answer was given, so a different output need not be a worse one."
    if cut := cut_note(result.variants):
        yield cut


def _other_budget(counts: Tally, states: Collection[State]) -> str:
    """Which budget would tell methods of one outcome apart; empty where none is known to."""
    if counts.by_answer and counts.full not in (None, "answered"):
        return ""  # more of a cache that misses the answer does not bring it
    if states == {"kept"}:
        return "smaller"
    return "larger" if states == {"lost"} else ""
