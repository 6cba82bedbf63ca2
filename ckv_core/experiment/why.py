"""The rows of `engine/why.py` as a table and a sentence on what an answer needed. No torch."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ckv_core.experiment.sentences import counted
from ckv_core.experiment.table import Column, Table, text_column
from ckv_core.records.events import RunResult
from ckv_core.records.records import Outcome
from ckv_core.records.work_requests import ALL_HEADS, CONTROL, NEIGHBOURS

MOST_NAMED = 6
# Kind of the attempts on a part -> what one is called.
_PARTS = {"layers": "band of layers", "layer": "layer", "KV head": "KV head"}
ALONE = "This holds for this text and this model alone."


@dataclass(frozen=True, slots=True)
class Attempt:
    """One row.

    Attributes:
        put_back: entries of all layers and heads; as many of the lowest ranked left.
    """

    label: str
    put_back: int
    outcome: Outcome | None
    text: str

    @property
    def answers(self) -> bool:
        return self.outcome == "answered"

    @property
    def kind(self) -> str:
        """`layer`, `layers`, `KV head`, or the label itself."""
        return re.sub(r" [\d-]+$", "", self.label)


@dataclass(frozen=True, slots=True)
class Why:
    """The attempts on one variant; the first two of `outcomes` are the full cache and itself."""

    variant: str
    full: Outcome | None
    own: Outcome | None
    attempts: Sequence[Attempt]

    @property
    def sentence(self) -> str:
        """The sentence on which entries brought the answer back, with the control beside it."""
        if self.full != "answered":
            return "The full cache does not answer either, so nothing was lost by eviction."
        if self.own == "answered":
            return f"{self.variant} answers, so there is nothing to bring back."
        by_kind: dict[str, list[Attempt]] = {}
        for each in self.attempts:
            by_kind.setdefault(each.kind, []).append(each)
        if ALL_HEADS not in by_kind:
            return f"{self.variant} holds all of the evidence and loses the answer all the same."
        (whole,), controls = by_kind[ALL_HEADS], by_kind.get(CONTROL.rpartition(" ")[0], [])
        back = sum(each.answers for each in controls)
        entries = counted(whole.put_back, "evicted entry", "evicted entries")
        verb = "brings" if whole.answers else "does not bring"
        first = (
            f"Putting the sentences with the evidence back ({entries}, same budget) {verb} the "
            f"answer back; as many random ones do in {back} of {len(controls)} draws."
        )
        if not whole.answers or 2 * back >= len(controls):
            return f"{first} So it is not shown that the evidence is what was missing."
        near = [each.answers for each in by_kind.get(NEIGHBOURS, [])]
        parts = [
            *(_enough(by_kind.get(kind, []), name) for kind, name in _PARTS.items()),
            *(f"the neighbours that pooling keeps ({'yes' if each else 'no'})" for each in near),
        ]
        return f"{first} Enough by itself: {', '.join(filter(None, parts))}. {ALONE}"

    def to_json(self) -> dict[str, Any]:
        """The sentence and the attempts as plain values."""
        return {"variant": self.variant, "sentence": self.sentence} | {
            "attempts": [asdict(each) for each in self.attempts]
        }

    @property
    def table(self) -> Table[Attempt]:
        """A row an attempt."""
        return Table(
            caption=f"What brings the answer of {self.variant} back",
            columns=[
                text_column("label", "Put back", lambda each: each.label),
                Column("entries", "Entries", lambda each: each.put_back, form=",d"),
                text_column("outcome", "Outcome", lambda each: each.outcome or "-"),
                text_column("text", "Text", lambda each: " ".join(each.text.split())[:60]),
            ],
            items=self.attempts,
            file="why.csv",
            note=f"Entries of all layers and KV heads; as many of the lowest are evicted. {ALONE}",
        )


def why_of(result: RunResult) -> Why:
    """Reads the attempts out of the whole result of a `WhyRequest`."""
    full, own, *rows = result.variants
    kept = own.retained.mask() if own.retained else None
    attempts = [
        Attempt(
            row.label,
            int((row.retained.mask() & ~kept).sum()) if row.retained and kept is not None else 0,
            row.outcome,
            row.text,
        )
        for row in rows
    ]
    return Why(own.label, full.outcome, own.outcome, attempts)


def _enough(attempts: Sequence[Attempt], name: str) -> str:
    """`layer 18 (1 of 30)`, `no KV head (0 of 3)`; empty where none was tried."""
    found = [each.label.rpartition(" ")[2] for each in attempts if each.answers]
    more = " and others" if len(found) > MOST_NAMED else ""
    part = f"{name} {', '.join(found[:MOST_NAMED])}{more}" if found else f"no {name}"
    return f"{part} ({len(found)} of {len(attempts)})" if attempts else ""
