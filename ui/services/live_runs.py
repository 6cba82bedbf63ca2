"""A run as pages see it, of one sample or many, and one that is not over."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from ckv_core.experiment import study_runner
from ckv_core.records.events import Progress, RunEvent, RunResult
from storage.models import SAMPLES
from storage.records import RunState, StoredRun

ENDS_LATER: frozenset[RunState] = frozenset({"queued", "running", "stopping"})
ELSEWHERE = "It runs in another server of this database; what that one recorded is shown."
END_NOT_RECORDED = "The end of this run could not be saved; run it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot(StoredRun):
    """A run at one moment; nothing in it changes later.

    Attributes:
        reason: why it failed or was cancelled, or that it lives in another server; else empty.
        progress: the latest; None before the first and once the run is over.
        stage_ms: milliseconds of the finished stages.
        queue_ahead: unfinished runs that will run before this one in the present order: users take
            turns, so another's first run may still come between. 0 once it runs.
        pace: of many samples, how far it is; None while it does not run.
    """

    progress: Progress | None = None
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    queue_ahead: int = 0
    pace: study_runner.Progress | None = None

    @property
    def kind(self) -> str:
        """`samples` of many; else `compare` at one budget, `sweep` at several."""
        return SAMPLES if self.counts else self.request.kind

    @property
    def is_final(self) -> bool:
        """Whether nothing more will change by itself."""
        return self.state not in ENDS_LATER

    @property
    def can_resume(self) -> bool:
        """Whether it is over and results are missing, or failed for a reason that may pass."""
        counts = self.counts
        if counts is None or not self.is_final:
            return False
        return self.state != "done" or counts.failed > counts.failed_for_good


def study_snapshot(
    stored: StoredRun, pace: study_runner.Progress | None, *, runs: bool
) -> RunSnapshot:
    """The view of a run of many samples; `runs` says whether it runs, here or in another server."""
    state: RunState = stored.state
    if runs:  # on a cluster, what it works at ends first
        state = "running" if stored.is_wanted else "stopping"
    elif stored.is_wanted:
        state = "queued"
    return RunSnapshot(**_members(stored) | {"state": state}, pace=pace)


def stored_snapshot(stored: StoredRun, ahead_elsewhere: int | None = None) -> RunSnapshot:
    """The view of a run that does not live in memory.

    `ahead_elsewhere`: of an unfinished run in another server, how many come before it there; None
    for one that lives nowhere any more.
    """
    view = RunSnapshot(**_members(stored), stage_ms=stored.result.timings_ms)
    if view.is_final:
        return _ended(view, view.state, view.reason)
    if ahead_elsewhere is None:
        return _ended(view, "failed", END_NOT_RECORDED)
    ahead = ahead_elsewhere if view.state == "queued" else 0
    return replace(view, reason=ELSEWHERE, queue_ahead=ahead)


def _members(stored: StoredRun) -> dict[str, Any]:
    return {each.name: getattr(stored, each.name) for each in fields(StoredRun)}


class LiveRun:
    """One run from its start to its end; watchers see a change as another `view`.

    Attributes:
        stopped: of many samples, whether it shall end.
    """

    def __init__(self, view: RunSnapshot) -> None:
        self.view = view
        self.stopped = threading.Event()
        self._stage_since = 0.0  # of the clock that only grows

    def apply(self, event: RunEvent) -> None:
        """Take in one event; the first one starts the run."""
        view = self.view
        if view.started_at is None:
            now = datetime.now(UTC)
            view = replace(view, state="running", started_at=now, queue_ahead=0)
        if isinstance(event, Progress):
            view = replace(view, progress=event, stage_ms=self._stages(view, event))
        # Readers hold the former result, whose list of variants must stay.
        result = replace(view.result, variants=list(view.result.variants))
        result.apply(event)
        self.view = replace(view, result=result)

    def end(self, state: RunState, reason: str) -> None:
        """Take in how it ended."""
        stages = self.view.result.timings_ms or self.view.stage_ms
        over = replace(
            self.view, progress=None, stage_ms=dict(stages), finished_at=datetime.now(UTC)
        )
        self.view = _ended(over, state, reason)

    def _stages(self, view: RunSnapshot, event: Progress) -> Mapping[str, float]:
        """The finished stages once the run is at that event's."""
        last, now = view.progress, time.monotonic()
        if last is not None and last.stage == event.stage:
            return view.stage_ms
        since, self._stage_since = self._stage_since, now
        if last is None:
            return view.stage_ms
        before = view.stage_ms.get(last.stage, 0.0)
        return {**view.stage_ms, last.stage: before + (now - since) * 1000}


def _ended(view: RunSnapshot, state: RunState, reason: str) -> RunSnapshot:
    """The run as over; of one that failed, unfinished variants say why they have no whole text."""
    result: RunResult = view.result
    if state == "failed":
        variants = [v if v.stopped else replace(v, failure=reason[:2_000]) for v in result.variants]
        result = replace(result, variants=variants)
    return replace(view, state=state, reason=reason, result=result, queue_ahead=0)
