"""Unfinished runs in memory, and the frozen view of a run that pages get. Not thread-safe."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Progress, RunEvent, RunResult, Stage
from storage.records import RunState, StoredRun

FINAL_STATES: frozenset[RunState] = frozenset({"done", "failed", "cancelled"})
ELSEWHERE = "It runs in another server of this database; what that one recorded is shown."
END_NOT_RECORDED = "The end of this run could not be saved; run it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run at one moment; nothing in it changes later.

    Attributes:
        reason: why it failed or was cancelled, or that it lives in another server; else empty.
        progress: the latest; None before the first and once the run is over.
        stage_ms: milliseconds of the finished stages.
        queue_ahead: unfinished runs that will run before this one, as it stands: users take turns,
            so another's first run may still come between. 0 once it runs.
        started_at, finished_at: UTC; None until then.
        version: grows with every change of an unfinished run; 0 for one read from storage.
    """

    slug: str
    title: str
    state: RunState
    reason: str
    progress: Progress | None
    stage_ms: Mapping[str, float]
    queue_ahead: int
    request: CompareRequest
    result: RunResult
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    version: int

    @property
    def kind(self) -> str:
        """`compare` at one budget, `sweep` at several."""
        return self.request.kind

    @property
    def is_final(self) -> bool:
        """Whether nothing more will change."""
        return self.state in FINAL_STATES


def stored_snapshot(stored: StoredRun, ahead_elsewhere: int | None = None) -> RunSnapshot:
    """The view of a run that does not live in memory.

    `ahead_elsewhere`: of an unfinished run in another server, how many come before it there; None
    for one that lives nowhere any more.
    """
    state, reason = stored.state, stored.reason
    if state not in FINAL_STATES and ahead_elsewhere is None:
        state, reason = "failed", END_NOT_RECORDED
    elif state not in FINAL_STATES:
        reason = ELSEWHERE
    return _snapshot(
        stored,
        state=state,
        reason=reason,
        progress=None,
        stage_ms=stored.result.timings_ms,
        queue_ahead=(ahead_elsewhere or 0) if state == "queued" else 0,
        version=0,
    )


@dataclass(slots=True)
class LiveRun:
    """One run from its start to its end; `version` tells watchers that something changed."""

    slug: str
    title: str
    request: CompareRequest
    created_at: datetime
    state: RunState = "queued"
    reason: str = ""
    progress: Progress | None = None
    stage_ms: dict[str, float] = field(default_factory=dict)
    result: RunResult = field(default_factory=RunResult)
    started_at: datetime | None = None
    finished_at: datetime | None = None
    version: int = 1
    owner: str | None = None
    _stage: tuple[Stage, float] | None = None

    def apply(self, event: RunEvent) -> None:
        """Take in one event; the first one starts the run."""
        if self.started_at is None:
            self.state, self.started_at = "running", datetime.now(UTC)
        if isinstance(event, Progress):
            self._follow_stage(event.stage)
            self.progress = event
        self.result.apply(event)
        self.version += 1

    def end(self, state: RunState, reason: str) -> None:
        self.state, self.reason, self.progress = state, reason, None
        self.finished_at = datetime.now(UTC)
        if self.result.timings_ms:
            self.stage_ms = dict(self.result.timings_ms)
        self.version += 1

    def snapshot(self, queue_ahead: int) -> RunSnapshot:
        """A copy that later events do not reach."""
        return _snapshot(
            self,
            progress=self.progress,
            stage_ms=dict(self.stage_ms),
            queue_ahead=queue_ahead,
            result=replace(self.result, variants=list(self.result.variants)),
            version=self.version,
        )

    def _follow_stage(self, stage: Stage) -> None:
        now = time.monotonic()
        if self._stage is None:
            self._stage = (stage, now)
            return
        last, since = self._stage
        if last != stage:
            self.stage_ms[last] = self.stage_ms.get(last, 0.0) + (now - since) * 1000
            self._stage = (stage, now)


def _snapshot(run: LiveRun | StoredRun, **more: Any) -> RunSnapshot:
    """What both have under one name, and the rest."""
    times = ("created_at", "started_at", "finished_at")
    names = ("slug", "title", "state", "reason", "request", "result", *times)
    members = {name: getattr(run, name) for name in names} | more
    if members["state"] == "failed":
        members["result"] = _failed(members["result"], members["reason"])
    return RunSnapshot(**members)


def _failed(result: RunResult, reason: str) -> RunResult:
    """The run with why its unfinished variants have no whole text."""
    marked = (v if v.stopped else replace(v, failure=reason[:2_000]) for v in result.variants)
    return replace(result, variants=list(marked))
