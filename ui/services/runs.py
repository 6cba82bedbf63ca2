"""Runs of one sample: followed in memory and recorded event by event, then read from storage."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ckv_core.base.logs import fields
from ckv_core.errors import CkvError, StorageError
from ckv_core.records.events import RunEvent
from storage import repository, servers
from storage.database import Database
from storage.library import NOT_OVER
from storage.recorder import Recorder
from storage.records import RunState
from storage.repository import DecodedRuns
from ui.services.live_runs import LiveRun, RunSnapshot, stored_snapshot

LOGGER = logging.getLogger(__name__)
UNSAVED_LIMIT = 8
LEFT_BEHIND = "The app stopped before this run ended; run it again."


class Runs:
    """Thread-safe; a run is in memory from its start until its end is recorded.

    What is not in memory is over, or unfinished in another server of the same database. Every
    method that reads storage raises StorageError if the database fails.
    """

    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        stop: Callable[[str], None],
        order: Callable[[], Sequence[str]],
    ) -> None:
        """Empty.

        Args:
            database: of all runs.
            recorder: writes every event.
            stop: ends the job of a run that can no longer be recorded.
            order: slugs of the run that runs and of those that wait, as they will run.
        """
        self._database = database
        self._recorder = recorder
        self._stop = stop
        self._order = order
        self._decoded = DecodedRuns()
        self._lock = threading.Lock()
        self._live: dict[str, LiveRun] = {}
        self._unsaved: dict[str, LiveRun] = {}

    # --- in storage ---------------------------------------------------------------------------

    def recover(self) -> None:
        """Fail what dead servers left behind; on SQLite at start only."""
        if left := self._recorder.recover(LEFT_BEHIND):
            LOGGER.warning("%d unfinished runs of dead servers were marked as failed.", left)

    def stored(self, slug: str) -> RunSnapshot:
        """A run as it is recorded; one whose server died meanwhile is failed first."""
        if self._ahead_elsewhere(slug) is not None:
            self.recover()
        with self._database.read() as session:
            stored = repository.load_run(session, slug, self._decoded)
            ahead = servers.ahead_elsewhere(session, slug, self._database.server)
        return stored_snapshot(stored, ahead)

    def let_go(self, slug: str) -> None:
        """Forget a run that is to be deleted; StorageError if it is not over, here or elsewhere."""
        if self._ahead_elsewhere(slug) is not None:
            raise StorageError(NOT_OVER)
        with self._lock:
            if slug in self._live:
                raise StorageError(NOT_OVER)
            self._unsaved.pop(slug, None)
        self._decoded.forget(slug)

    def _ahead_elsewhere(self, slug: str) -> int | None:
        if self._database.server is None:
            return None
        with self._database.read() as session:
            return servers.ahead_elsewhere(session, slug, self._database.server)

    # --- in memory ----------------------------------------------------------------------------

    def add(self, view: RunSnapshot) -> None:
        """A run that was recorded as queued."""
        with self._lock:
            self._live[view.slug] = LiveRun(view)
        request = view.request
        entry = fields(run=view.slug, kind=request.kind, variants=len(request.specs))
        LOGGER.info("run queued", extra=entry)

    def slugs(self) -> list[str]:
        """Of all that are not over, oldest first."""
        with self._lock:
            return list(self._live)

    def owners(self) -> list[str | None]:
        """Who started them, one entry each."""
        with self._lock:
            return [run.view.owner for run in self._live.values()]

    def states(self) -> dict[str, int]:
        with self._lock:
            return dict(Counter(run.view.state for run in self._live.values()))

    def find(self, slug: str) -> LiveRun | None:
        """The run if it is not over, or if its end could not be saved."""
        with self._lock:
            return self._live.get(slug) or self._unsaved.get(slug)

    def view(self, run: LiveRun) -> RunSnapshot:
        """The run as it is now: another object where something changed, its place included."""
        order = self._order() if run.view.state == "queued" else ()
        with self._lock:
            if run.view.state == "queued" and run.view.slug in order:
                before = order[: order.index(run.view.slug)]
                ahead = sum(slug in self._live for slug in before)
                if ahead != run.view.queue_ahead:
                    run.view = replace(run.view, queue_ahead=ahead)
            return run.view

    def apply(self, slug: str, event: RunEvent) -> None:
        """Take in one event: memory first, so that watchers wait for no disk."""
        with self._lock:
            run = self._live.get(slug)
            if run is None:
                return
            is_first = run.view.started_at is None
            run.apply(event)
        try:
            if is_first:
                self._recorder.start(slug)
            was_recorded = self._recorder.apply(slug, event)
        except Exception as error:
            LOGGER.exception("Run %s cannot be recorded.", slug)
            self._abandon(slug, "failed", _not_saved(error))
        else:
            if not was_recorded:
                self._abandon(slug, *self._end_elsewhere(slug))

    def end(self, slug: str, state: RunState, reason: str) -> None:
        """Record the end, then move the run from memory to storage in one step.

        A run that another server ended meanwhile ends as that server recorded.
        """
        with self._lock:
            if slug not in self._live:
                return
        was_saved = True
        try:
            if not self._recorder.end(slug, state, reason):
                state, reason = self._end_elsewhere(slug)
        except Exception as error:
            LOGGER.exception("The end of run %s cannot be recorded.", slug)
            was_saved = False
            if state == "done":
                state, reason = "failed", _not_saved(error)
        with self._lock:
            run = self._live.pop(slug, None)
            if run is None:
                return
            run.end(state, reason)
            if not was_saved:  # storage still calls it running; readers get the truth
                self._unsaved[slug] = run
                while len(self._unsaved) > UNSAVED_LIMIT:
                    del self._unsaved[next(iter(self._unsaved))]
        LOGGER.info("run ended", extra=_ended(run.view))
        if was_saved:
            self._save_again()

    def _save_again(self) -> None:
        """Storage takes ends again: also those that it could not take before."""
        with self._lock:
            waiting = [run.view for run in self._unsaved.values()]
        for run in waiting:
            try:
                self._recorder.end(run.slug, run.state, run.reason)
            except Exception:
                LOGGER.exception("The end of run %s still cannot be recorded.", run.slug)
                return
            with self._lock:
                self._unsaved.pop(run.slug, None)

    def _abandon(self, slug: str, state: RunState, reason: str) -> None:
        self._stop(slug)
        self.end(slug, state, reason)

    def _end_elsewhere(self, slug: str) -> tuple[RunState, str]:
        """How another server that shares the database ended a run of this one."""
        try:
            ended = self._database.read_with(repository.end_of, slug)
        except repository.RunMissingError:
            ended = None
        except StorageError as error:
            return "failed", _not_saved(error)
        return ended or ("failed", "The run was deleted.")


def _ended(run: RunSnapshot) -> dict[str, object]:
    """State and durations for the log; the reason may quote a prompt."""
    ended = run.finished_at or run.created_at
    started = run.started_at or ended
    return fields(
        run=run.slug,
        state=run.state,
        waited_ms=round((started - run.created_at).total_seconds() * 1000),
        ran_ms=round((ended - started).total_seconds() * 1000),
        stages_ms={stage: round(ms) for stage, ms in run.stage_ms.items()},
    )


def _not_saved(error: Exception) -> str:
    """The sentence for a run that storage refused."""
    detail = str(error) if isinstance(error, CkvError) else type(error).__name__
    return f"The run could not be saved: {detail}"
