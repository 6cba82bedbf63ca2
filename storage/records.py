"""What storage hands out: plain frozen records, never rows."""

import re
import zlib
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from ckv_core.base.checked import By, Checked, Plain, chars, require
from ckv_core.errors import CkvError
from ckv_core.records.codec import from_json, record_json
from ckv_core.records.events import RunResult
from ckv_core.records.outcomes import Tally
from ckv_core.records.run_request import RunRequest
from storage.models import ACTIVE_STATES, SLUG_LENGTH

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
# None is stored as stopping: so is shown what ends although it is no longer to be run.
RunState = Literal["queued", "running", "stopping", "done", "failed", "cancelled", "unfinished"]
RunSort = Literal["newest", "oldest", "title"]
SLUG = f"[a-z0-9]{{{SLUG_LENGTH}}}"
NOTE_LIMIT = 10_000
# What the reading of a row raises whose values somebody else wrote, or another version.
SPOILT = (CkvError, TypeError, ValueError, LookupError, AttributeError, zlib.error)


def _read_time(value: Any, _: Plain) -> datetime:
    form = r"\d{4}-\d\d-\d\dT[\d:.]{5,15}(Z|[+-]\d\d:\d\d)"
    is_time = isinstance(value, str) and re.fullmatch(form, value, re.ASCII)
    require(is_time, "a time with a time zone is expected")
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except OverflowError as error:
        raise ValueError from error  # as of a month that does not exist


Time = Annotated[datetime, By(_read_time)]  # as a bundle has it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list; None or an empty text is no condition.

    Attributes:
        text: words that title, note, question or generations have; the last as a beginning.
        method: of any variant.
        since, until: first and one past the last moment of creation.
        answer: kept (by every variant that was judged) or lost (by one or more).
        owner: the user who made it; empty for everybody's.
    """

    text: str = ""
    model: str = ""
    method: str = ""
    state: str = ""
    kind: str = ""
    since: datetime | None = None
    until: datetime | None = None
    answer: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCounts:
    """How far a run of many samples is.

    Attributes:
        samples, points: how many; their product is the number of results of the whole run.
        done, failed: results; failed_for_good: of the failed those that fail each time.
    """

    samples: int
    points: int
    done: int
    failed: int
    failed_for_good: int

    @property
    def total(self) -> int:
        """Results of the whole run."""
        return self.samples * self.points

    @property
    def is_whole(self) -> bool:
        """Whether every result is there, failed ones too."""
        return 0 < self.total <= self.done + self.failed

    @property
    def sentence(self) -> str:
        """`12 of 40 results, 2 failed`."""
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.done:,} of {self.total:,} results{failed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs.

    Attributes:
        variant_specs: as parsed by the worker; as requested before; of many samples its points.
        prompt_tokens: None until the prompt was tokenised, and of many samples.
        counts: of a run of many samples; None where its definition cannot be read.
    """

    slug: str
    title: str
    model_name: str
    state: RunState
    variant_specs: tuple[str, ...]
    prompt_tokens: int | None
    created_at: datetime
    note: str = ""
    outcome: Tally = field(default_factory=Tally)
    kind: str = "compare"
    counts: ResultCounts | None = None


@dataclass(frozen=True, slots=True)
class RunNotes(Checked):
    """What readers wrote beside a run."""

    note: Annotated[str, chars(NOTE_LIMIT)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A saved run: of one sample with all its results, of many with how far it is.

    Attributes:
        reason: why it failed, was cancelled or stopped; else empty.
        created_at, started_at, finished_at: UTC.
        result: what the events of the run fold to; partial if the run did not end well. Of many
            samples the model and the versions alone, once it ran.
        owner: the user who made it; None without logins.
        server: the one that runs it now, on PostgreSQL; None for none.
        counts: of many samples; None of one.
    """

    slug: str
    title: Annotated[str, chars(1000)]
    state: RunState
    reason: Annotated[str, chars(10_000)]
    created_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None
    request: RunRequest
    result: Annotated[RunResult, By(lambda value, _: from_json(value))]
    owner: str | None = None
    server: int | None = None
    counts: ResultCounts | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the app is to run it, also after a restart."""
        return self.state in ACTIVE_STATES

    @property
    def facts(self) -> dict[str, Any]:
        """State, date, counts, model and environment, as an export of many samples has them."""
        model = self.result.model
        return {
            "state": self.state,
            "created_at": self.created_at.isoformat(),
            "done": self.counts.done if self.counts else 0,
            "failed": self.counts.failed if self.counts else 0,
            "model_info": model and record_json(model),
            "environment": self.result.environment or None,
        }


def record_of(kind: type[Record], row: object, **others: Any) -> Record:
    """The record whose members are columns of a row, by their names, but for these others."""
    names = (each.name for each in fields(kind) if each.name not in others)
    return kind(**{name: getattr(row, name) for name in names}, **others)
