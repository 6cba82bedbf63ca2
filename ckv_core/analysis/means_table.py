"""The one table over several runs: its columns, and what each says of a variant. No torch.

The page, the terminal and the files show it alike, a row per method and budget.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import fsum

from ckv_core.analysis.aggregate import Aggregate, Several
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.names import curve_name
from ckv_core.analysis.pairs import COMPARED, Pair
from ckv_core.experiment.stats import Difference, Interval
from ckv_core.request.identity import Identity
from ckv_core.results.figures import FIGURES, figures_in
from ckv_core.results.outcomes import writes_same_text
from ckv_core.results.quantities import Figure
from ckv_core.results.records import Outcome

MIB = 2**20
NOTE = (
    "A row is a variant over its prompts: mean and 95 % interval (Wilson's of shares and scores, "
    "else Student's). To compare two rows, read a column with a minus: the difference on the same "
    "prompts (Tango's interval of shares and scores; of yes or no the prompts gained + and lost -, "
    "and p of the exact McNemar test of this pair alone). The base is the same method and settings "
    "without CriticalKV."
)
_OUTCOMES: dict[Outcome, str] = {
    "answered": "Generations that hold the expected answer.",
    "missed": "Generations that ended without the expected answer.",
    "cut": "The limit of new tokens ended the text before the answer: neither right nor wrong.",
    "failed": "Generations that failed, which are neither right nor wrong.",
}
_SCORES = ("answer", "agreement")
_MECHANISM = ("head", "final")


@dataclass(frozen=True, slots=True)
class Cell:
    """What is read of a variant, and what it is sorted by and saved as."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        definition: what its figure means.
        is_extra: shown on demand; in the terminal below the table, a line per variant.
        read: its cell; None where nothing is known.
    """

    key: str
    label: str
    unit: str = ""
    definition: str = ""
    is_text: bool = False
    is_extra: bool = False
    read: Callable[[Aggregate], Cell | None]


def columns_of(found: Several) -> list[Column]:
    """The columns in which something is known, the extra ones last."""
    figures = figures_in("means")
    scores, moved = ([_mean(figures[key]) for key in keys] for keys in (_SCORES, _MECHANISM))
    others = [f for key, f in figures.items() if key not in (*_SCORES, *_MECHANISM)]
    every = (
        *_NAMES,
        *_outcomes(found),
        *scores,
        _SAME_TEXT,
        _MEMORY,
        *moved,
        *(_mean(figure, is_extra=True) for figure in others),
        _WINS,
        _BROKEN,
        *_differences(found),
        Column(key="spec", label="SPEC", is_text=True, is_extra=True, read=lambda m: Cell(m.spec)),
    )
    return [each for each in every if any(each.read(member) for member in found.members)]


def interval_text(interval: Interval, *, is_share: bool) -> str:
    """`1.2 (1.1 to 1.3)`, or the mean alone where there is no interval or one prompt."""

    def text(value: float) -> str:
        return f"{value:z.1%}" if is_share else f"{value:z,.4g}"

    if interval.low is None or interval.high is None or interval.n == 1:
        return text(interval.mean)
    return f"{text(interval.mean)} ({text(interval.low)} to {text(interval.high)})"


def difference_text(key: str, difference: Difference) -> str:
    """`+2 -1, p = 1` of a yes or no, else the mean difference with its interval."""
    if difference.p is not None:
        return f"+{difference.higher} -{difference.lower}, p = {difference.p:.2g}"
    text = interval_text(difference.mean, is_share=FIGURES[key].is_share)
    return text + difference.level_note


def variant_name(variant: JoinedVariant) -> str:
    """Its label with what tells it from others of its method, but for the budget."""
    return curve_name(variant.variants[0].label, variant.alpha, variant.spec)


def _budget(member: Aggregate) -> Cell | None:
    asked = member.joined.budget
    return Cell(str(asked), asked.amount) if asked else None


_NAMES = (
    Column(
        key="variant", label="Variant", is_text=True, read=lambda m: Cell(variant_name(m.joined))
    ),
    Column(key="budget", label="Budget", unit="requested", read=_budget),
    Column(key="n", label="n", unit="prompts", read=lambda m: Cell(f"{m.joined.n:,}", m.joined.n)),
)


def _outcomes(found: Several) -> Iterator[Column]:
    known = {word for member in found.members for word in member.outcomes}
    shown = known | {"answered", "missed"} if known & {"answered", "missed", "cut"} else known
    for word, definition in _OUTCOMES.items():
        if word in shown:
            yield Column(
                key=word,
                label=word.capitalize(),
                unit="prompts",
                definition=definition,
                read=partial(_count, word),
            )


def _count(word: Outcome, member: Aggregate) -> Cell:
    return Cell(f"{member.outcomes[word]:,}", member.outcomes[word])


def _same_text(member: Aggregate) -> Cell | None:
    same = [each for each in map(writes_same_text, member.joined.variants) if each is not None]
    return Cell(f"{sum(same)} of {len(same)}", sum(same)) if same else None


_SAME_TEXT = Column(
    key="same",
    label="Same text",
    unit="as the full cache",
    definition="Generations that are the full cache's, token by token.",
    read=_same_text,
)


def _mean(figure: Figure, *, is_extra: bool = False) -> Column:
    def read(member: Aggregate) -> Cell | None:
        mean = member.figures.get(figure.key)
        if mean is None:
            return None
        text = interval_text(mean, is_share=figure.is_share)
        return Cell(text + _of(mean, member.joined), mean.mean)

    return Column(
        key=figure.key,
        label=figure.mean_label,
        unit=figure.unit_name,
        definition=figure.definition,
        is_extra=is_extra,
        read=read,
    )


def _of(mean: Interval, variant: JoinedVariant) -> str:
    """How many prompts a mean is of, where it is not of all that the variant was run on."""
    return "" if mean.n == variant.n else f", n = {mean.n}"


def _memory(member: Aggregate) -> Cell | None:
    receipts = [v.receipt for v in member.joined.variants if v.receipt is not None]
    if not receipts:
        return None
    mean = fsum(each.cache_bytes for each in receipts) / len(receipts)
    full = fsum(each.full_cache_bytes for each in receipts) / len(receipts)
    return Cell(f"{mean / MIB:,.2f} ({mean / full:.1%})", mean / MIB)


_MEMORY = Column(
    key="memory",
    label="Memory",
    unit="MiB, of the full cache",
    definition=FIGURES["cache_bytes"].definition,
    read=_memory,
)


def _wins(member: Aggregate) -> Cell | None:
    wins = member.head_wins
    if wins is None or not wins.heads:
        return None
    return Cell(f"{wins.count:,} of {wins.heads:,} ({wins.share:.1%})", wins.count)


_WINS = Column(
    key="wins",
    label="Heads won",
    unit="of the means",
    definition="Query heads whose mean L1 over the prompts is below that of the same variant "
    "without CriticalKV.",
    is_extra=True,
    read=_wins,
)


def _broken(member: Aggregate) -> Cell | None:
    if member.violations is None:
        return None
    text = f"{member.violations:,} of {member.checked:,} covered, {member.bounded:,} in all"
    return Cell(text, member.violations)


_BROKEN = Column(
    key="broken",
    label="Bounds broken",
    unit="heads",
    definition="Heads with sigma over 0.5, which the theorems cover, where L1 <= theta <= "
    "theta-hat <= relaxed theta fails.",
    is_extra=True,
    read=_broken,
)


def _differences(found: Several) -> Iterator[Column]:
    """Each compared figure minus the full cache's, then minus the base's."""
    kinds = (("full", "the full cache's", True), ("base", "the base's", False))
    for kind, words, is_full in kinds:
        pairs = {
            pair.variant.identity: pair for pair in found.pairs if (not pair.other.place) == is_full
        }
        yield from (_difference(key, f"{key}_{kind}", words, pairs) for key in COMPARED)


def _difference(key: str, name: str, words: str, pairs: dict[Identity, Pair]) -> Column:
    def read(member: Aggregate) -> Cell | None:
        pair = pairs.get(member.joined.identity)
        difference = pair.figures.get(key) if pair else None
        if difference is None:
            return None
        text = difference_text(key, difference) + _of(difference.mean, member.joined)
        return Cell(text, difference.mean.mean)

    return Column(
        key=name,
        label=f"{COMPARED[key]} minus {words}",
        unit="on the same prompts",
        definition=FIGURES[key].definition,
        is_extra=True,
        read=read,
    )
