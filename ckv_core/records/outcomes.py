"""What the generations of a run came to: one count for page, list, command line, report and API.

No torch.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ckv_core.records.records import Outcome, VariantResult

OUTCOME_WORDS: dict[Outcome | None, str] = {
    "answered": "answered",
    "missed": "missed",
    "cut": "cut",
    "failed": "failed",
}
# What a text came to, where answers decide or the full cache's text does. cut: neither of both.
State = Literal["kept", "lost", "cut"]
STATES: dict[Outcome | None, State] = {
    "answered": "kept",
    "missed": "lost",
    "cut": "cut",
    "failed": "cut",
}
_CORRECTLY = ("answers correctly", "answer correctly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Generations by what they came to; the full cache's own is counted in no number.

    Attributes:
        answered, missed, cut, failed: with that outcome.
        full: outcome of the full cache; None without one.
        same, compared: that write the full cache's tokens, of how many.
        full_cut: whether the limit of new tokens cut the full cache's text.
    """

    answered: int = 0
    missed: int = 0
    cut: int = 0
    failed: int = 0
    full: Outcome | None = None
    same: int = 0
    compared: int = 0
    full_cut: bool = False

    @property
    def by_answer(self) -> bool:
        """Whether an answer was expected, so that it decides; else the full cache's text does."""
        judged = self.answered + self.missed + self.cut
        return judged > 0 or self.full in ("answered", "missed", "cut")

    @property
    def about_full(self) -> str:
        """A sentence where the full cache has no answer that could be lost; else empty."""
        if self.full == "missed":
            return "The model gets this wrong even with the full cache."
        return "The full cache's own text was cut before an answer." if self.full == "cut" else ""

    def phrase(self, what: str = "method", one: str = "") -> str:
        """`3 of 7 methods still answer correctly, 2 were cut`; empty where nothing is known.

        Args:
            what: is counted.
            one: name of the only one.
        """
        return self._of_answers(what, one) if self.by_answer else self._of_texts(what, one)

    def _of_answers(self, what: str, one: str) -> str:
        count = self.answered + self.missed + self.cut + self.failed
        still = "still " if self.full == "answered" else ""
        if count <= 1:
            ends = {
                f"{still}answers correctly": self.answered,
                "misses the expected answer": self.missed,
                "was cut before an answer": self.cut,
                "failed": self.failed,
            }
            found = (f"{one or f'The {what}'} {end}" for end, is_so in ends.items() if is_so)
            return next(found, "")
        if self.cut == count:
            return f"{'Both' if count == 2 else f'All {count}'} {what}s were cut before an answer"
        counts = [_counted(self.answered, count, what, _CORRECTLY, still)]
        for number, end in ((self.cut, "cut"), (self.failed, "failed")):
            if number:
                was = "" if end == "failed" else "was " if number == 1 else "were "
                counts.append(f"{number} {was}{end}")
        return ", ".join(counts)

    def _of_texts(self, what: str, one: str) -> str:
        if not self.compared:
            return ""
        until = " up to the limit of new tokens" if self.full_cut else ""
        if not self.same:
            output = "the output" if self.compared == 1 else "every output"
            return f"{output} differs from the full cache's"
        words = ("writes the same text as the full cache", "write the same text as the full cache")
        if self.compared == 1:
            return f"{one or f'The {what}'} {words[0]}{until}"
        return _counted(self.same, self.compared, what, words, "") + until


def _counted(some: int, of: int, what: str, verbs: tuple[str, str], still: str) -> str:
    if some == 0:
        return f"{f'Neither {what}' if of == 2 else f'None of {of} {what}s'} {verbs[0]}"
    if some == of:
        return f"{'Both' if of == 2 else f'All {of}'} {what}s {still}{verbs[1]}"
    return f"{some} of {of} {what}s {still}{verbs[some > 1]}"


def tally(variants: Iterable[VariantResult]) -> Tally:
    """The count of a run's variants."""
    every = list(variants)
    evicting = [each for each in every if each.method != "full"]
    full = full_of(every)
    counts = Counter(each.outcome for each in evicting)
    texts = [same for each in evicting if (same := writes_same_text(each)) is not None]
    return Tally(
        **{key: counts[key] for key in ("answered", "missed", "cut", "failed")},
        full=full.outcome if full else None,
        same=sum(texts),
        compared=len(texts),
        full_cut=full is not None and full.stopped == "length",
    )


def full_of(variants: Sequence[VariantResult]) -> VariantResult | None:
    """The full cache, if it is among them and has finished."""
    return next((v for v in variants if v.method == "full" and v.stopped is not None), None)


def outcome_word(variant: VariantResult) -> str:
    """`answered`, `missed`, `cut`, `cut, repeats itself` or `failed`; empty where none is known."""
    repeats = ", repeats itself" if variant.outcome == "cut" and variant.loops else ""
    return OUTCOME_WORDS.get(variant.outcome, "") + repeats


def is_cut(variant: VariantResult) -> bool:
    """Whether generation met the limit of new tokens before the expected answer."""
    return variant.outcome == "cut"


def cut_note(variants: Iterable[VariantResult]) -> str | None:
    """How many texts the limit cut and which setting to raise; None where it does not matter.

    It matters where an expected answer was cut off, and where texts are compared that were all cut.
    """
    every = [each for each in variants if each.stopped is not None]
    by_text = tally(every)
    if by_text.by_answer:
        cut, so = [v for v in every if is_cut(v)], " before an answer: neither right nor wrong"
    else:
        cut, so = [v for v in every if v.stopped == "length"], ": what would follow is unknown"
        cut = cut if by_text.full_cut else []
    if not cut:
        return None
    limits = sorted({len(each.token_ids) for each in cut})
    ends = " to ".join(f"{limit:,}" for limit in dict.fromkeys((limits[0], limits[-1])))
    were = f"{'was' if len(cut) == 1 else 'were'} cut at {ends} new tokens{so}"
    texts = f"text{'' if len(every) == 1 else 's'}"
    raise_it = raise_sentence(len(cut), sum(v.loops for v in cut))
    return f"{len(cut):,} of {len(every):,} {texts} {were}. {raise_it}"


def raise_sentence(cut: int, looping: int) -> str:
    """Which setting to raise for texts that were cut, unless they repeat themselves."""
    if looping == cut:
        repeats = "It repeats itself" if cut == 1 else "They repeat themselves"
        return f"{repeats}, so a higher limit would not help."
    if not looping:
        return "Raise New tokens (max_new_tokens)."
    does = "repeats itself" if looping == 1 else "repeat themselves"
    return (
        f"Raise New tokens (max_new_tokens), but {looping:,} of them {does}, which a higher limit "
        "would not help."
    )


def writes_same_text(variant: VariantResult) -> bool | None:
    """Whether every token is the full cache's; None until the run is over."""
    return None if variant.agreement is None else variant.first_difference is None


def state_of(variant: VariantResult, *, by_answer: bool) -> State | None:
    """By the answer, or by whether it writes the full cache's text; None where not known."""
    same = writes_same_text(variant)
    if by_answer or variant.failure:
        return STATES.get(variant.outcome)
    return None if same is None else "kept" if same else "lost"


def has_exact_match(variants: Iterable[VariantResult]) -> bool:
    """Whether exact match says anything: not where the full cache's own text has none."""
    own = (v.answer_scores.get("exact_match", 0.0) for v in variants if v.method == "full")
    return any(score > 0 for score in own)


def kl_where_it_fails(variant: VariantResult) -> float | None:
    """KL in nats from the full cache at the first token that differs.

    Up to there the variant read the same tokens, so its teacher-forced step is its own. None
    where no token differs or fidelity was not measured.
    """
    measured, at = variant.analysis.get("forced_kl"), variant.first_difference
    if measured is None or at is None or at >= len(measured):
        return None
    return float(measured[at])
