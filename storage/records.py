"""What storage hands out: plain frozen records, never rows."""

import zlib
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ckv_core.errors import CkvError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import Tally

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
RunState = Literal["queued", "running", "done", "failed", "cancelled"]
LineageKind = Literal["rerun", "fork"]
RunSort = Literal["newest", "oldest", "title", "model", "tokens"]
# What the reading of a row raises whose values somebody else wrote, or another version.
SPOILT = (CkvError, TypeError, ValueError, LookupError, AttributeError, zlib.error)


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a run comes from: its parent's request as it was (rerun) or changed (fork)."""

    parent: str
    kind: LineageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list; None or an empty text asks for nothing.

    Attributes:
        text: words that title, note, question or generations have; the last as a beginning.
        method: of any variant.
        min_budget, max_budget: resolved tokens of one variant other than `full`, of this method
            if one is given.
        since, until: first and one past the last moment of creation.
        pinned: True for pinned runs only.
        answer: kept (by every variant that was judged) or lost (by one or more).
        owner: the user who made it; empty for everybody's.
    """

    text: str = ""
    model: str = ""
    method: str = ""
    min_budget: int | None = None
    max_budget: int | None = None
    tag: str = ""
    state: str = ""
    kind: str = ""
    since: datetime | None = None
    until: datetime | None = None
    pinned: bool = False
    answer: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class RunRelative:
    """A parent or child of a run; `title` is None if it is gone."""

    slug: str
    title: str | None
    kind: LineageKind
    state: RunState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs.

    Attributes:
        variant_specs: as parsed by the worker; as asked before that.
        prompt_tokens: None until the prompt was tokenised.
    """

    slug: str
    title: str
    model_name: str
    state: RunState
    variant_specs: tuple[str, ...]
    prompt_tokens: int | None
    created_at: datetime
    note: str = ""
    pinned: bool = False
    tags: tuple[str, ...] = ()
    outcome: Tally = field(default_factory=Tally)
    kind: str = "compare"


@dataclass(frozen=True, slots=True)
class RunNotes:
    """What readers wrote beside a run."""

    note: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A saved run with all its results.

    Attributes:
        reason: why it failed or was cancelled; else empty.
        created_at, started_at, finished_at: UTC.
        result: what the events of the run fold to; partial if the run did not end well.
        owner: the user who made it; None without logins.
    """

    slug: str
    title: str
    state: RunState
    reason: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    request: CompareRequest
    result: RunResult
    owner: str | None = None


def record_of(kind: type[Record], row: object, **others: Any) -> Record:
    """The record whose members are columns of a row, by their names, but for these others."""
    names = (each.name for each in fields(kind) if each.name not in others)
    return kind(**{name: getattr(row, name) for name in names}, **others)
