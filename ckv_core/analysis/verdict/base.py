"""The parts of a verdict, and the words that its sentences share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ckv_core.results.records import Outcome

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
        told = (f"{name} ({', '.join(parts)})" if parts else name for name, parts in notes)
        return f"{self.label}: {'; '.join(told)}."


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
        return {
            "headline": self.headline,
            "regimes": self.regimes,
            "groups": [
                {
                    "state": group.state,
                    "outcome": group.outcome,
                    "label": group.label,
                    "variants": [
                        {"index": m.index, "name": m.name, "note": m.note, "regime": m.regime}
                        for m in group.members
                    ],
                }
                for group in self.groups
            ],
            "findings": list(self.findings),
            "cautions": list(self.cautions),
        }


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
