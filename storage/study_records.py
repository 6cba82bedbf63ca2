"""What storage hands out of studies: plain frozen records, never rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ckv_core.studies.records import Study

StudyState = Literal["queued", "done", "unfinished", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """A study and how far it is.

    Attributes:
        owner: the user who made it; empty without logins.
        created_at: UTC.
        model, environment: ModelInfo and versions; None until it ran.
        wanted: the app is to run it.
        server: the one that runs it now, on PostgreSQL; None for none.
        reason: why the app stopped running it; else empty.
        samples, points: how many; their product is the number of results of a whole study.
        done, failed: results; failed_for_good: of the failed those that fail each time.
        problem: why its definition cannot be read; then `study` has its name alone.
    """

    slug: str
    owner: str
    study: Study
    created_at: datetime
    model: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
    wanted: bool
    server: int | None
    reason: str
    samples: int
    points: int
    done: int
    failed: int
    failed_for_good: int = 0
    problem: str = ""

    @property
    def total(self) -> int:
        """Results of the whole study."""
        return self.samples * self.points

    @property
    def state(self) -> StudyState:
        """`done` once every result is there, failed ones too; `queued` while the app is to run it.

        `unreadable` where this version cannot read its definition.

        Whether it runs at this moment only the process knows in which it does.
        """
        if self.problem:
            return "unreadable"
        if self.wanted:
            return "queued"
        return "done" if self.total and self.done + self.failed >= self.total else "unfinished"

    @property
    def facts(self) -> dict[str, Any]:
        """What an export tells beside the definition."""
        return {
            "state": self.state,
            "created_at": self.created_at.isoformat(),
            "done": self.done,
            "failed": self.failed,
            "model_info": self.model,
            "environment": self.environment,
        }
