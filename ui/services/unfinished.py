"""The unfinished runs: followed in memory for whoever watches, recorded event by event."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from ckv_core.errors import CkvError, StorageError
from ckv_core.results.events import RunEvent
from ckv_core.runtime.logs import fields
from storage.library import NOT_OVER
from storage.recorder import Recorder
from storage.records import RunState
from ui.services.live_runs import LiveRun, RunSnapshot

LOGGER = logging.getLogger(__name__)
UNSAVED_LIMIT = 8


class UnfinishedRuns:
    """Thread-safe; a run is here from its start until its end is recorded."""

    def __init__(
        self, recorder: Recorder, stop: Callable[[str], None], order: Callable[[], Sequence[str]]
    ) -> None:
        """Empty.

        Args:
            recorder: writes every event.
            stop: told the slug of a run that can no longer be recorded.
            order: slugs of the run that runs and of those that wait, as they will run.
        """
        self._recorder = recorder
        self._stop = stop
        self._order = order
        self._lock = threading.Lock()
        self._live: dict[str, LiveRun] = {}
        self._unsaved: dict[str, LiveRun] = {}

    def add(self, run: LiveRun) -> None:
        with self._lock:
            self._live[run.slug] = run
        asked = run.request
        told = fields(run=run.slug, kind=asked.kind, variants=len(asked.specs))
        LOGGER.info("run queued", extra=told)

    def slugs(self) -> list[str]:
        """Of all that are not over, oldest first."""
        with self._lock:
            return list(self._live)

    def owners(self) -> list[str | None]:
        """Who started them, one entry each."""
        with self._lock:
            return [run.owner for run in self._live.values()]

    def states(self) -> dict[str, int]:
        with self._lock:
            return dict(Counter(run.state for run in self._live.values()))

    def find(self, slug: str) -> LiveRun | None:
        """The run if it is not over, or if its end could not be saved."""
        with self._lock:
            return self._live.get(slug) or self._unsaved.get(slug)

    def view(self, run: LiveRun) -> RunSnapshot:
        order = self._order() if run.state == "queued" else ()
        with self._lock:
            return run.snapshot(self._ahead(run, order))

    def places_changed(self) -> None:
        """Those who watch waiting runs look again: one came before or between them."""
        with self._lock:
            for run in self._live.values():
                if run.state == "queued":
                    run.version += 1

    def _ahead(self, run: LiveRun, order: Sequence[str]) -> int:
        """How many unfinished runs come before one that waits."""
        if run.state != "queued" or run.slug not in order:
            return 0
        return sum(slug in self._live for slug in order[: order.index(run.slug)])

    def let_go(self, slug: str) -> None:
        """Forget a run that is to be deleted; StorageError if it is not over."""
        with self._lock:
            if slug in self._live:
                raise StorageError(NOT_OVER)
            self._unsaved.pop(slug, None)

    def apply(self, slug: str, event: RunEvent) -> None:
        """Take in one event: memory first, so that watchers wait for no disk."""
        with self._lock:
            run = self._live.get(slug)
            if run is None:
                return
            is_first = run.started_at is None
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

        A run that another server ended meanwhile is over as that server said.
        """
        with self._lock:
            if slug not in self._live:
                return
        was_saved = True
        try:
            if not self._record(slug, state, reason):
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
            for waiting in self._live.values():
                waiting.version += 1  # one run fewer may be ahead of it
            if not was_saved:  # storage still calls it running; whoever asks gets the truth
                self._unsaved[slug] = run
                while len(self._unsaved) > UNSAVED_LIMIT:
                    del self._unsaved[next(iter(self._unsaved))]
        LOGGER.info("run ended", extra=_ended(run))
        if was_saved:
            self._save_again()

    def _record(self, slug: str, state: RunState, reason: str) -> bool:
        """Write an end; False if the run is over in storage, or gone."""
        if state == "done":
            return self._recorder.finish(slug)
        if state == "failed":
            return self._recorder.fail(slug, reason)
        return self._recorder.cancel(slug, reason)

    def _save_again(self) -> None:
        """Storage takes ends again: also those that it could not take before."""
        with self._lock:
            waiting = list(self._unsaved.values())
        for run in waiting:
            try:
                self._record(run.slug, run.state, run.reason)
            except Exception:
                LOGGER.exception("The end of run %s still cannot be recorded.", run.slug)
                return
            with self._lock:
                self._unsaved.pop(run.slug, None)

    def _abandon(self, slug: str, state: RunState, reason: str) -> None:
        self._stop(slug)
        self.end(slug, state, reason)

    def _end_elsewhere(self, slug: str) -> tuple[RunState, str]:
        """What another server that shares the database made of a run of this one."""
        try:
            ended = self._recorder.end_of(slug)
        except StorageError as error:
            return "failed", _not_saved(error)
        return ended or ("failed", "The run was deleted.")


def _ended(run: LiveRun) -> dict[str, object]:
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
