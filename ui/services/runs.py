"""Runs that are not over, of one sample or many: they start, take turns, stop and end here.

One sample is a job of the worker: followed in memory and recorded event by event. Many samples are
computed by a thread, each sample a job of its own, and recorded sample by sample; each user's
oldest such run has the turn, and runs of one sample come between, as the worker's queue has it.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from ckv_core.base.logs import fields
from ckv_core.errors import CkvError, ConfigError, RunCancelledError, StorageError
from ckv_core.experiment.study import SampleResult
from ckv_core.experiment.study_runner import run_study
from ckv_core.records.events import RunEvent, RunResult
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job
from storage import repository, servers
from storage.database import Database
from storage.library import NOT_OVER
from storage.recorder import Recorder, title_of
from storage.records import RunState
from storage.repository import DecodedRuns, RunMissingError
from ui.accounts.access import DISABLED, Access
from ui.services.library import Room
from ui.services.live_runs import LiveRun, RunSnapshot, stored_snapshot, study_snapshot
from ui.services.study_jobs import ClusterTurns, WorkerEngine

LOGGER = logging.getLogger(__name__)
LEFT_BEHIND = "The app stopped before this run ended; run it again."
UNKNOWN = "The run failed for a reason that is not known; the log has the details."
CHECK_S = 5.0  # between looks for runs of many samples whose server died
WAITS_S = (1.0, 5.0, 15.0)  # until a busy database is tried again
MOST_FAILED = 3  # samples in a row that failed as a whole for one reason: it is not theirs


class Runs:
    """Thread-safe; a run is in memory from its start or its turn until its end is recorded.

    One whose end storage cannot take stays: storage still calls it running, readers get the truth.

    What is not in memory is over, waits for its turn, or lives in another server of the same
    database. Every method that reads storage raises StorageError if the database fails.
    """

    def __init__(
        self,
        database: Database,
        access: Access,
        room: Room,
        client: WorkerClient,
        cluster: ClusterTurns | None = None,
    ) -> None:
        """Nothing runs before `begin`.

        Args:
            database: of all runs.
            access: says whose runs may go on.
            room: for what many samples add.
            client: runs one sample, and without a cluster many.
            cluster: computes many samples.
        """
        self._database, self._read = database, database.read_with
        self._access, self._room = access, room
        self._client, self._cluster = client, cluster
        self.recorder = Recorder(database)
        self._decoded = DecodedRuns()
        self._lock = threading.Lock()
        self._live: dict[str, LiveRun] = {}
        self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="runs", daemon=True)

    def begin(self) -> None:
        """Fail what dead servers left of one sample, and run on what they left of many."""
        self._recover()
        self._wake.set()
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop those of many samples, which are continued at the next start."""
        self._closing = True
        for run in self._many():
            run.stopped.set()
        self._wake.set()
        self._thread.join(timeout_s)  # it may be asking the database, which is closed next

    # --- of one sample or many ----------------------------------------------------------------

    def find(self, slug: str) -> LiveRun | None:
        """The run if it runs here, or if its end could not be saved."""
        with self._lock:
            return self._live.get(slug)

    def unfinished(self) -> list[RunSnapshot]:
        """All in memory that are not over, oldest first."""
        with self._lock:
            return [run.view for run in self._live.values() if not run.view.is_final]

    def check_queue(self, owner: str | None) -> None:
        """LimitError where one more run of this user would be too much; None without logins."""
        owners = [run.owner for run in self.unfinished() if run.counts is None]
        owners += self._read(repository.wanted_studies).values()  # those that wait for a turn too
        own = None if owner is None else owners.count(owner)
        self._room.limits.check_queue(len(owners), own)

    def view(self, run: LiveRun) -> RunSnapshot:
        """The run as it is now: another object where something changed, its place included."""
        order = self._client.order() if run.view.state == "queued" else ()
        with self._lock:
            if run.view.state == "queued" and run.view.slug in order:
                before = order[: order.index(run.view.slug)]
                ahead = sum(slug in self._live for slug in before)
                if ahead != run.view.queue_ahead:
                    run.view = replace(run.view, queue_ahead=ahead)
            return run.view

    def stored(self, slug: str) -> RunSnapshot:
        """A run as it is recorded; one of one sample whose server died is failed first."""
        if self._ahead_elsewhere(slug) is not None:
            self._recover()
        server = self._database.server
        with self._database.read() as session:
            try:
                stored = repository.load_run(session, slug, self._decoded)
            except RunMissingError:
                study = repository.load_study(session, slug)
                elsewhere = study.is_wanted and study.server not in (None, server)
                return study_snapshot(study, None, runs=elsewhere)
            return stored_snapshot(stored, servers.ahead_elsewhere(session, slug, server))

    def stop(self, slug: str, reason: str) -> None:
        """Stop a run, nothing if it is over; one of another server stops at its next event."""
        run = self.find(slug)
        if run is not None and run.view.counts is None:
            if not run.view.is_final:
                self._client.cancel(slug)
            return
        self._read(repository.run_owner, slug)  # RunMissingError where there is none
        self.recorder.end(slug, "cancelled", reason)
        if run is not None:
            stopping = study_snapshot(self._read(repository.load_study, slug), None, runs=True)
            with self._lock:
                run.view = stopping if slug in self._live else run.view
            run.stopped.set()

    def let_go(self, slug: str) -> None:
        """Forget a run that is to be deleted; StorageError if it is not over, here or elsewhere."""
        run = self.find(slug)
        if (run and not run.view.is_final) or self._ahead_elsewhere(slug) is not None:
            raise StorageError(NOT_OVER)
        with self._lock:
            self._live.pop(slug, None)
        self._decoded.forget(slug)

    def _ahead_elsewhere(self, slug: str) -> int | None:
        server = self._database.server
        return None if server is None else self._read(servers.ahead_elsewhere, slug, server)

    def _recover(self) -> None:
        """Fail what dead servers left of one sample; on SQLite at start only."""
        if left := self.recorder.recover(LEFT_BEHIND):
            LOGGER.warning("%d unfinished runs of dead servers were marked as failed.", left)

    # --- of one sample ------------------------------------------------------------------------

    def submit(self, request: RunRequest, owner: str | None, title: str = "") -> str:
        """Record a run and queue it; returns its slug. Without a title it makes its own."""
        title = title or title_of(request)
        slug = self.recorder.create(request, title, owner)
        view = RunSnapshot(
            slug=slug,
            title=title,
            state="queued",
            reason="",
            created_at=datetime.now(UTC),
            request=request,
            result=RunResult(),
            owner=owner,
        )
        with self._lock:
            self._live[slug] = LiveRun(view)
        entry = fields(run=slug, kind=request.kind, variants=len(request.specs))
        LOGGER.info("run queued", extra=entry)
        self._client.submit(Job(slug, request, owner))
        return slug

    def apply(self, slug: str, event: RunEvent) -> None:
        """Take in one event: memory first, so that watchers wait for no disk."""
        with self._lock:
            run = self._live.get(slug)
            if run is None or run.view.is_final:
                return
            is_first = run.view.started_at is None
            run.apply(event)
        try:
            if is_first:
                self.recorder.start(slug)
            was_recorded = self.recorder.apply(slug, event)
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
        run, was_saved = self.find(slug), True
        if run is None or run.view.is_final:
            return
        try:
            if not self.recorder.end(slug, state, reason):
                state, reason = self._end_elsewhere(slug)
        except Exception as error:
            LOGGER.exception("The end of run %s cannot be recorded.", slug)
            was_saved = False
            if state == "done":
                state, reason = "failed", _not_saved(error)
        with self._lock:
            run.end(state, reason)
            if was_saved:
                self._live.pop(slug, None)
        LOGGER.info("run ended", extra=_ended(run.view))
        if was_saved:
            self._save_again()

    def _save_again(self) -> None:
        """Storage takes ends again: also those that it could not take before."""
        with self._lock:
            views = [run.view for run in self._live.values()]
        waiting = [view for view in views if view.is_final and view.counts is None]
        for run in waiting:
            try:
                self.recorder.end(run.slug, run.state, run.reason)
            except Exception:
                LOGGER.exception("The end of run %s still cannot be recorded.", run.slug)
                return
            with self._lock:
                self._live.pop(run.slug, None)

    def _abandon(self, slug: str, state: RunState, reason: str) -> None:
        self._client.cancel(slug)
        self.end(slug, state, reason)

    def _end_elsewhere(self, slug: str) -> tuple[RunState, str]:
        """How another server that shares the database ended a run of this one."""
        try:
            ended = self._read(repository.end_of, slug)
        except RunMissingError:
            ended = None
        except StorageError as error:
            return "failed", _not_saved(error)
        return ended or ("failed", "The run was deleted.")

    # --- of many samples ----------------------------------------------------------------------

    def want(self, slug: str) -> None:
        """Have the rest of a run computed once it has its turn, also after a restart."""
        self.recorder.want(slug)
        self._wake.set()

    def _many(self) -> list[LiveRun]:
        with self._lock:
            return [run for run in self._live.values() if run.view.counts is not None]

    def _serve(self) -> None:
        """Begin what is wanted until the app closes."""
        while not self._closing:
            try:
                self._begin_turns()
            except Exception:
                LOGGER.exception("Runs of many samples cannot be begun.")
            self._wake.wait(CHECK_S)
            self._wake.clear()

    def _begin_turns(self) -> None:
        """Have the oldest run of each owner computed that no other server computes."""
        for slug, owner in self._read(repository.wanted_studies).items():
            if self._closing or owner in {run.view.owner for run in self._many()}:
                continue
            if not self._access.may_work(owner):
                self.recorder.end(slug, "cancelled", DISABLED)
            elif self.recorder.start(slug):
                try:
                    stored = self._read(repository.load_study, slug)
                except StorageError as error:
                    self.recorder.end(slug, "failed", str(error))
                    continue
                run = LiveRun(study_snapshot(stored, None, runs=True))
                with self._lock:
                    self._live[slug] = run
                threading.Thread(target=self._run, args=(run,), daemon=True).start()

    def _run(self, run: LiveRun) -> None:
        """One run of many samples to its end; the reason is kept where it ends early."""
        slug, reason = run.view.slug, ""
        try:
            self._run_samples(run)
        except CkvError as error:
            reason = str(error)
        except Exception:
            LOGGER.exception("A run of many samples failed.")
            reason = UNKNOWN
        over, was_noted = replace(run.view, state="unfinished"), False
        try:
            if not (run.stopped.is_set() or self._closing):  # the reason stands, or it is wanted
                self.recorder.end(slug, "failed", reason)
            self.recorder.release(slug)
            over = study_snapshot(self._read(repository.load_study, slug), None, runs=False)
            was_noted = True
        except Exception:
            LOGGER.exception("The end of run %s cannot be noted; it is run again.", slug)
        with self._lock:
            run.view = over
            del self._live[slug]
        if was_noted:
            self._wake.set()  # the owner's next one has its turn

    def _run_samples(self, run: LiveRun) -> None:
        slug, owner = run.view.slug, run.view.owner
        study = self._read(repository.load_study, slug).request
        samples = self._read(repository.load_samples, slug)
        done = self._read(repository.done_keys, slug)
        engine = self._cluster or WorkerEngine(self._client, owner, run.stopped)
        commit = _Committed(functools.partial(self._patiently, run, self.recorder.commit, slug))
        served = functools.partial(self.recorder.served_by, slug)
        for progress in run_study(engine, study, samples, done, commit, served):
            stored = self._read(repository.load_study, slug)
            if self._closing or not stored.is_wanted:
                run.stopped.set()
                raise RunCancelledError
            if not self._access.may_work(owner):
                raise ConfigError(DISABLED)
            self._room.check(owner)
            run.view = study_snapshot(stored, progress, runs=True)

    def _patiently(self, run: LiveRun, write: Callable[..., None], *values: object) -> None:
        """Write, also to a database that others keep busy for a while."""
        for wait_s in WAITS_S:
            try:
                write(*values)
            except RunMissingError:
                raise
            except StorageError:
                LOGGER.warning("Results of many samples cannot be stored; trying again.")
                if run.stopped.wait(wait_s):
                    raise RunCancelledError from None
            else:
                return
        write(*values)


class _Committed:
    """Hands results on, and ends a run whose samples all fail for one reason."""

    def __init__(self, commit: Callable[[Sequence[SampleResult]], None]) -> None:
        self._commit = commit
        self._reason, self._count = "", 0

    def __call__(self, results: Sequence[SampleResult]) -> None:
        self._commit(results)
        reasons = {result.reason for result in results}
        reason = reasons.pop() if len(reasons) == 1 else ""
        self._count = self._count + 1 if reason and reason == self._reason else bool(reason)
        self._reason = reason
        if self._count >= MOST_FAILED:
            raise ConfigError(f"{MOST_FAILED} samples in a row failed: {reason}")


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
