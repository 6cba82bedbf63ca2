"""The verdict on a comparison."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ckv_core.analysis.names import display_names
from ckv_core.analysis.verdict.base import (
    Group,
    Member,
    State,
    Verdict,
    counted,
    groups_of,
    listed,
    percent,
    spread,
)
from ckv_core.analysis.verdict.perturbation import findings
from ckv_core.analysis.verdict.rounding import rounding_cautions
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import AnswerOutcome, answer_outcome, writes_same_text
from ckv_core.results.records import VariantResult

_STATES: dict[AnswerOutcome, State] = {"found": "kept", "missing": "lost", "cut": "cut"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Every finished variant that evicts, with its outcome.

    Attributes:
        by_answer: whether the answer decides; else the full cache's text does.
        indices: of the variants, rising.
        states: of each.
    """

    by_answer: bool
    indices: tuple[int, ...]
    states: tuple[State, ...]

    def having(self, state: State) -> list[int]:
        """Indices of the variants with this outcome."""
        pairs = zip(self.indices, self.states, strict=True)
        return [index for index, outcome in pairs if outcome == state]


def run_verdict(result: RunResult) -> Verdict | None:
    """What came out of a run that is over; None where nothing was generated.

    The answer decides where the full cache gives it; else whether a variant writes the full
    cache's text. Perturbation decides nothing: it is told beside the outcome.
    """
    full = full_of(result.variants)
    finished = [v for v in result.variants if v.stopped is not None]
    if not finished:
        return None
    judged = judge(result.variants)
    if not judged.indices:
        return Verdict(headline=_nothing_judged(result.variants, full))
    states = dict(zip(judged.indices, judged.states, strict=True))
    return Verdict(
        headline=_headline(result, judged, full),
        groups=_groups(result, judged),
        findings=findings(result.variants, states) if judged.by_answer else (),
        cautions=tuple(_cautions(result, judged, full)),
    )


def judge(variants: Sequence[VariantResult]) -> Judged:
    """The outcome of every finished variant that evicts."""
    full = full_of(variants)
    by_answer = (
        any(map(answer_outcome, variants)) if full is None else answer_outcome(full) == "found"
    )
    states: dict[int, State] = {}
    for index, variant in enumerate(variants):
        if variant.method == "full" or variant.stopped is None:
            continue
        answer, same = answer_outcome(variant), writes_same_text(variant)
        if by_answer and answer is not None:
            states[index] = _STATES[answer]
        elif not by_answer and same is not None:
            states[index] = "kept" if same else "lost"
    return Judged(by_answer=by_answer, indices=tuple(states), states=tuple(states.values()))


def full_of(variants: Sequence[VariantResult]) -> VariantResult | None:
    """The full cache, if it is among them and has finished."""
    full = (v for v in variants if v.method == "full" and v.stopped is not None)
    return next(full, None)


def where(result: RunResult, indices: Iterable[int]) -> str:
    """`with 614 of 1,537 entries per KV head (40 % of the bytes)`; empty where not known."""
    known = [result.variants[index].receipt for index in indices]
    receipts = [each for each in known if each is not None and each.full_cache_bytes]
    if not receipts:
        return ""
    prompt = result.prompt.compressed_tokens if result.prompt else None
    # No head keeps more than there is, whatever budget the receipt asked for.
    budgets = [min(each.budget_tokens, prompt or each.budget_tokens) for each in receipts]
    shares = [each.cache_bytes / each.full_cache_bytes for each in receipts]
    entries = spread(f"{min(budgets):,}", f"{max(budgets):,}")
    whole = f" of {prompt:,}" if prompt is not None else ""
    bytes_ = spread(percent(min(shares)), percent(max(shares)))
    return f" with {entries}{whole} entries per KV head ({bytes_} of the bytes)"


def _nothing_judged(variants: Sequence[VariantResult], full: VariantResult | None) -> str:
    if full is None:
        return (
            "Without the full cache and without a reference answer this run does not say what "
            "eviction changed: add one of the two."
        )
    if any(variant.method != "full" for variant in variants):
        return "The full cache has finished, and no variant that could be compared with it."
    answers = {"found": " and gives the reference answer", "cut": ", cut before an answer"}
    told = answers.get(answer_outcome(full) or "", "")
    return f"Only the full cache ran{told}: add a method to compare."


def _headline(result: RunResult, judged: Judged, full: VariantResult | None) -> str:
    kept, count = judged.having("kept"), len(judged.indices)
    place = where(result, judged.indices)
    if judged.by_answer:
        whose = "full cache's" if full else "reference"
        one, many = f"gives the {whose} answer", f"give the {whose} answer"
    else:
        one, many = "writes the full cache's text", "write the full cache's text"
    if count == 1:
        name = display_names(result.variants)[judged.indices[0]]
        gone = "was cut before an answer" if judged.states == ("cut",) else f"no longer {one}"
        return f"{name} {f'still {one}' if kept else gone}{place}."
    if not kept:
        none = "Neither variant" if count == 2 else f"None of {count} variants"
        return f"{none} {one}{place}."
    if len(kept) == count:
        every = "Both" if count == 2 else f"All {count}"
        return f"{every} variants still {many}{place}."
    return f"{len(kept)} of {count} variants still {one if len(kept) == 1 else many}{place}."


def _groups(result: RunResult, judged: Judged) -> tuple[Group, ...]:
    names = display_names(result.variants)

    def members(state: State) -> list[Member]:
        # Whoever stays with the full cache longest comes first.
        until = [v.first_difference for v in result.variants]
        stays = {i: math.inf if at is None else at for i, at in enumerate(until)}
        indices = sorted(judged.having(state), key=lambda i: stays[i], reverse=True)
        return [Member(i, names[i], _note(result.variants[i], state, judged)) for i in indices]

    if judged.by_answer:
        return groups_of(
            ("kept", "Answer kept", members("kept")),
            ("lost", "Answer lost", members("lost")),
            ("cut", "Cut before an answer", members("cut")),
        )
    return groups_of(
        ("kept", "Same text", members("kept")), ("lost", "Another text", members("lost"))
    )


def _note(variant: VariantResult, state: State, judged: Judged) -> str:
    """From which token on it differs."""
    if variant.agreement is None:
        return ""
    if variant.first_difference is None:
        return "same text" if judged.by_answer else ""
    at = f"from token {variant.first_difference + 1:,} on"
    return f"other words {at}" if state == "kept" else at


def _cautions(result: RunResult, judged: Judged, full: VariantResult | None) -> Iterable[str]:
    """What cannot be concluded, the gravest first."""
    if full and not judged.by_answer:
        yield from _about_full(result, full)
    cut = len(judged.having("cut"))
    if cut:
        limit = max(len(v.token_ids) for v in result.variants if v.stopped == "length")
        yield (
            f"{counted(cut, 'generation was', 'generations were')} cut at {limit:,} new tokens "
            "before an answer: neither right nor wrong. Allow more new tokens."
        )
    receipts = [result.variants[index].receipt for index in judged.indices]
    if all(r is not None and r.cache_bytes == r.full_cache_bytes for r in receipts):
        yield "Nothing was evicted: the budget holds the whole prompt."
    elif len(receipts) > 1 and len(set(judged.states)) == 1 and judged.states[0] != "cut":
        smaller = "smaller" if judged.states[0] == "kept" else "larger"
        yield f"The outcome is the same for all, so it ranks none; try a {smaller} budget."
    yield from rounding_cautions(result)
    unfinished = sum(v.stopped is None for v in result.variants)
    if unfinished:
        are = counted(unfinished, "variant is", "variants are")
        yield f"{are} left out: the run ended before {'it' if unfinished == 1 else 'they'} did."
    yield "One prompt: another one may turn this around."


def _about_full(result: RunResult, full: VariantResult) -> Iterable[str]:
    """Why the answer does not decide."""
    outcome = answer_outcome(full)
    if outcome is None:
        yield "No reference answer was given, so another text is not known to be a worse one."
        return
    if outcome == "cut":
        yield (
            f"The full cache itself was cut at {len(full.token_ids):,} new tokens before the "
            "reference answer: allow more, or nothing can be said of answers."
        )
        return
    lucky = [
        name
        for name, variant in zip(display_names(result.variants), result.variants, strict=True)
        if variant.method != "full" and answer_outcome(variant) == "found"
    ]
    does = "gives" if len(lucky) == 1 else "give"
    more = f" {listed(lucky)} {does} it, which one prompt cannot explain." if lucky else ""
    yield f"The full cache itself misses the reference answer, so no variant can lose it.{more}"
