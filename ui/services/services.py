"""What pages may call: start, watch, cancel and find runs. Joins the worker and storage."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from ckv_core.errors import CkvError, ModelError, StorageError
from ckv_core.experiment.cluster import Cluster
from ckv_core.models.catalog import local_path
from ckv_core.records.events import TokensCounted
from ckv_core.records.records import RetainedSet
from ckv_core.records.run_request import RunRequest, check_text
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import JobEnd, JobEvent, ModelStatus, Reply
from ckv_core.worker.process import WorkerProcess
from storage import audit, repository
from storage.bundle import ImportReport, import_bundle, write_bundle
from storage.database import Database
from storage.repository import missing_run
from ui.accounts.access import Access
from ui.accounts.administration import Administration
from ui.accounts.credentials import Accounts
from ui.accounts.turns import in_turn
from ui.limits import Limits
from ui.services.caches import Caches
from ui.services.example import Example
from ui.services.library import Library, Room, Shares
from ui.services.live_runs import LiveRun, RunSnapshot
from ui.services.previews import Previews
from ui.services.runs import Runs
from ui.services.studies import Studies
from ui.services.study_jobs import ClusterTurns
from ui.users import User

LOGGER = logging.getLogger(__name__)
POLL_INTERVAL_S = 1.0  # of runs in storage; other servers write generated text once a second
KEPT_STATUSES = 16  # models whose last word from the worker is remembered
WATCH_INTERVAL_S = 0.08
WATCHER_S = 0.02  # what the interval grows by with each watcher: what is shown takes time to make
CLOSED = "The app was closed before this run ended."
CANCELLED = "Cancelled on request."


class Services:
    """All that pages know of the world; any thread may call any method.

    Unfinished runs live in memory and are recorded as they go; finished ones are read from
    storage. Runs continue when nobody watches. Every method raises StorageError if the database
    fails.

    Every method checks with `access` what the viewer of the current request may do. Somebody
    else's run fails exactly like one that does not exist.
    """

    def __init__(
        self,
        database: Database,
        *,
        make_client: Callable[..., WorkerClient] = WorkerClient,
        make_worker: Callable[..., WorkerProcess] = WorkerProcess,
        access: Access | None = None,
        limits: Limits | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """Mark runs that a dead server left behind as failed, and start a worker.

        Args:
            database: open; the caller closes it after `close`.
            make_client: builds the client around the function that takes its replies; a run's
                time limit comes as `run_limit_s`.
            make_worker: starts its worker, with or without GPUs of ZeroGPU.
            access: what viewers may do; by default everything, as without logins.
            limits: what is taken at most.
            cluster: where studies are computed, closed by the caller after `close`; None for the
                app's own worker, which computes all runs.

        Raises:
            StorageError: the database cannot be written.
        """
        self._database = database
        self._access = access or Access(database)
        limits = limits or Limits()
        self.shares = Shares(database, self._access)
        self.accounts = Accounts(database, self._access)
        self._starting = threading.Lock()  # around slow steps; the other one never waits for I/O
        self._client = make_client(self._take, make_worker=make_worker)
        self._model_statuses: dict[str, ModelStatus] = {}
        self._statuses_lock = threading.Lock()
        self._closing = False
        self._watching = 0  # pages that follow an unfinished run; of the event loop alone
        self._room = Room(database, limits)
        self._room.purge()
        turns = None if cluster is None else ClusterTurns(cluster)
        self._runs = Runs(database, self._access, self._room, self._client, turns)
        self.library = Library(database, self._access, self._runs.let_go, self._room)
        self.studies = Studies(database, self._access, self._room, self._client, self._runs)
        self.administration = Administration(database, self._access, self._runs.stop)
        self.caches = Caches(self._access, self._room, self._client)
        self.example = Example(database, self._access, self._runs, self._is_ready)
        self.previews = Previews(self._access, self._client, self.snapshot, self.start_run)
        self._client.start()
        self._runs.begin()

    # --- runs ---------------------------------------------------------------------------------

    def start_run(self, request: RunRequest) -> str:
        """Check, record and queue a run; returns its slug. CkvError if it cannot be taken."""
        owner = self._access.user(change=True)
        request.validate()
        with self._starting:
            if self._closing:
                raise CkvError("The app is closing; start it again first.")
            self._runs.check_queue(owner)
            self._room.check_new(owner)
            return self._runs.submit(request, owner)

    def cancel_run(self, slug: str) -> None:
        """Stop a run; nothing if it is over."""
        self._access.check_run(slug, "change")
        self._runs.stop(slug, CANCELLED)

    def view(self, slug: str) -> RunSnapshot:
        """A run of one sample or of many, as it is now."""
        self._access.check_run(slug)
        run = self._runs.find(slug)
        return self._runs.stored(slug) if run is None else self._runs.view(run)

    def snapshot(self, slug: str) -> RunSnapshot:
        """A run of one sample, as it is now."""
        view = self.view(slug)
        if view.counts is not None:
            raise missing_run(slug)
        return view

    async def watch(
        self, slug: str, interval_s: float = WATCH_INTERVAL_S
    ) -> AsyncIterator[RunSnapshot]:
        """Follow a run: its state now, changes at most once per interval, its end.

        With many watchers the interval grows, so that others are answered. A run that waits for its
        turn, or lives in another server of the same database, is read about once a second.
        Any number may watch; whether they do changes nothing for the run.

        Raises:
            StorageError: there is no such run, or it cannot be read.
        """
        await in_turn(self._access.check_run, slug)
        run: LiveRun | None = None
        seen: RunSnapshot | None = None
        self._watching += 1
        try:
            while seen is None or not seen.is_final:
                run = self._runs.find(slug) or (run if run and run.view.is_final else None)
                view = self._runs.view(run) if run else await in_turn(self.view, slug)
                if view is not seen:
                    seen = view
                    yield view
                pause_s = max(interval_s, self._watching * WATCHER_S) if run else POLL_INTERVAL_S
                await asyncio.sleep(0 if view.is_final else pause_s)
        finally:
            self._watching -= 1

    def retained(self, slug: str, index: int) -> RetainedSet | None:
        """What one variant kept; None for `full` and before it is known."""
        self._access.check_run(slug)
        run = self._runs.find(slug)
        if run is None:
            return self._database.read_with(repository.load_retained, slug, index)
        variants = self._runs.view(run).result.variants
        return variants[index].retained if 0 <= index < len(variants) else None

    def export_bundle(self, slugs: Sequence[str]) -> bytes:
        """These runs as one zip, to be imported elsewhere; docs/how-to/share.md.

        Notes of a run are left out for those who may only read it.

        Raises:
            StorageError: a run is not there, not over, or too big.
        """
        for slug in slugs:
            self._access.check_run(slug)
        only_read = [slug for slug in slugs if not self._access.may(slug, "own")]
        data = self._database.read_with(write_bundle, slugs, only_read)
        self.note_export(slugs)
        return data

    def note_export(self, slugs: Sequence[str]) -> None:
        """Tell the audit log that runs left the app as files; a full disk keeps none from it."""
        for slug in slugs:
            self._access.check_run(slug)
        try:
            with self._database.write() as session:
                for slug in slugs:
                    audit.record(session, self._access.viewer().user, "exported", slug)
        except StorageError:
            LOGGER.exception("An export is missing in the audit log.")

    def import_bundle(self, data: bytes) -> ImportReport:
        """Store the runs of a bundle or a result file as the viewer's own, all or none."""
        owner = self._access.user(change=True)
        room, most = self._room.check(owner), self._room.limits.runs
        return import_bundle(self._database, data, owner, most, room, actor=owner)

    # --- viewers ------------------------------------------------------------------------------

    @property
    def with_logins(self) -> bool:
        """Whether runs have owners."""
        return self._access.with_logins

    @property
    def users(self) -> Mapping[str, User]:
        return self._access.users

    @property
    def is_guest(self) -> bool:
        """Whether the viewer can only read what share links open."""
        return self._access.is_guest

    def may_change(self, slug: str) -> bool:
        """Whether the viewer may do more with a run than read it."""
        return self._access.may(slug, "change")

    # --- models -------------------------------------------------------------------------------

    def count_tokens(self, request: RunRequest, timeout_s: float = 30.0) -> TokensCounted:
        """Tokens of the prompt and the model's limit; waits. Failure is in its `error`."""
        owner = self._access.user(change=True)
        try:
            check_text("context", request.context)
            check_text("question", request.question)
        except CkvError as error:
            return TokensCounted(error=str(error))
        return self._client.counter.count(request, timeout_s, owner)

    def model_status(self, model: str) -> ModelStatus | None:
        """The status that the worker last reported for this model."""
        self._access.user()
        return self._model_statuses.get(model)

    def check_model(self, model: str) -> None:
        """ModelError where no model has this name, or it could not be loaded.

        The next call may find that it can. Of a name a busy worker would say it late.
        """
        self._access.user(change=True)
        status = self._model_statuses.get(model)
        if status is None or status.loading:
            local_path(model)
        elif status.failed:
            self.warm(model)
            raise ModelError(status.message)

    def warm(self, model: str) -> None:
        self._access.user(change=True)
        self._keep_status(ModelStatus(model, False, f"{model} waits to be loaded.", loading=True))
        self._client.warm(model)

    def cancel_load(self, model: str) -> None:
        """Stop loading or downloading a model ahead; a run that loads it goes on."""
        self._access.user(change=True)
        self._client.cancel_warm(model)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the worker; unfinished runs end as cancelled, with what they have."""
        with self._starting:
            self._closing = True
        self.example.close(timeout_s)
        self._runs.close(timeout_s)
        self._client.close(timeout_s)
        for run in self._runs.unfinished():
            if run.counts is None:
                self._runs.end(run.slug, "cancelled", CLOSED)

    # --- replies, in the client's thread --------------------------------------------------------

    def _take(self, reply: Reply) -> None:
        match reply:
            case ModelStatus():
                self._keep_status(reply)
            case JobEvent():
                self._runs.apply(reply.job_id, reply.event)
            case JobEnd(state="cancelled"):
                self._runs.end(reply.job_id, "cancelled", CLOSED if self._closing else CANCELLED)
            case JobEnd():
                self._runs.end(reply.job_id, reply.state, reply.reason)
            case _:
                pass  # the client keeps the others to itself

    def _is_ready(self, model: str) -> bool:
        status = self._model_statuses.get(model)
        return status is not None and status.ready

    def _keep_status(self, status: ModelStatus) -> None:
        with self._statuses_lock:
            self._model_statuses.pop(status.model, None)
            self._model_statuses[status.model] = status
            while len(self._model_statuses) > KEPT_STATUSES:
                del self._model_statuses[next(iter(self._model_statuses))]
