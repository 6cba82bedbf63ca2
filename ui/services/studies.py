"""Studies in the app: saved, run by its worker, and continued after a restart.

Pages only watch. Each user's oldest study runs, sample by sample, each sample a job: so users take
turns, and their runs come between, as the worker's queue has it.
"""

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePath

from ckv_core.errors import CkvError, ConfigError, RunCancelledError, StorageError
from ckv_core.experiment.cluster import Cluster
from ckv_core.experiment.data import read_samples, samples_of_runs
from ckv_core.experiment.export import read_export
from ckv_core.experiment.harness import LM_EVAL, harness_samples
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample, SampleResult, Study
from ckv_core.experiment.study_file import write_study
from ckv_core.experiment.study_runner import (
    Commit,
    Cost,
    Progress,
    PromptSize,
    cost,
    request_of,
    run_study,
)
from ckv_core.experiment.tasks import make_samples
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import WorkerClient
from storage import repository
from storage.database import Database
from storage.models import SAMPLES
from storage.recorder import Recorder
from storage.records import StoredStudy
from storage.repository import RunMissingError, is_slug
from ui.accounts.access import DISABLED, Access
from ui.limits import Limits
from ui.services.library import check_new_run, check_room
from ui.services.study_jobs import StudyJobs, prompt_size

LOGGER = logging.getLogger(__name__)
KEPT_READINGS = 8  # a big study takes a second
NO_STUDY = "There is no study of this name; see the list of runs."
CHECK_S = 5.0  # between looks for studies of a server that died
WAITS_S = (1.0, 5.0, 15.0)  # until a busy database is tried again
CLUSTER_TURN = 8  # samples a worker, before another user's study has the cluster
MOST_FAILED = 3  # samples in a row that failed as a whole for one reason: it is not theirs
COUNTED = 5  # prompts that are tokenised for an estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """A study as it is now.

    Attributes:
        running: here or in another server; its last sample may be what a cluster still works at.
        progress: where it is; None while it does not run.
    """

    stored: StoredStudy
    running: bool
    progress: Progress | None

    @property
    def slug(self) -> str:
        return self.stored.slug

    @property
    def title(self) -> str:
        return self.stored.study.name

    @property
    def kind(self) -> str:
        """That of all runs of many samples."""
        return SAMPLES

    @property
    def is_final(self) -> bool:
        """Whether nothing more will change by itself."""
        return self.state not in ("running", "stopping", "queued")

    @property
    def can_resume(self) -> bool:
        """Whether it is over and results are missing, or failed for a reason that may pass."""
        may_pass = self.stored.counts.failed - self.stored.counts.failed_for_good
        return self.is_final and (self.stored.state != "done" or may_pass > 0)

    @property
    def state(self) -> str:
        """`running`, `stopping`, `queued`, `done` or `unfinished`."""
        if self.running:
            return "running" if self.stored.is_wanted else "stopping"
        return "queued" if self.stored.is_wanted else self.stored.state


@dataclass(slots=True)
class _Turn:
    """The study that runs for one owner."""

    slug: str
    owner: str | None
    jobs: StudyJobs
    progress: Progress | None = None


class _Line:
    """One at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] is me)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()

    @property
    def others_wait(self) -> bool:
        return len(self._waiting) > 1


class Studies:
    """All that pages know of studies; any thread may call any method.

    A study is a run of many samples: services list, stop, annotate, share and delete it as any run.
    Somebody else's study fails exactly like one that does not exist. Every method raises
    StorageError if the database fails.
    """

    def __init__(
        self,
        database: Database,
        access: Access,
        limits: Limits,
        worker: WorkerClient,
        cluster: Cluster | None = None,
    ) -> None:
        """Nothing runs before `begin`; without a cluster the app's worker runs it."""
        self._database = database
        self._store = Recorder(database)
        self._read = database.read_with
        self._access, self._limits, self._worker = access, limits, worker
        self._cluster = cluster
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._server = database.server
        self._turns: dict[str | None, _Turn] = {}  # by owner
        self._cluster_line = _Line()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="studies", daemon=True)

    def begin(self) -> None:
        """Run what was to be run when the app ended."""
        self._wake.set()
        self._thread.start()

    # --- pages --------------------------------------------------------------------------------

    def samples_of(self, study: Study, text: str = "") -> tuple[Sample, ...]:
        """The samples of a study's task, or of its file's text; waits for tokens and data sets."""
        self._access.user(change=True)
        study.validate()
        if "task" in study.data:
            self._limits.check_task(study.data)
        if "file" in study.data:
            if not text.strip():
                raise ConfigError("Give the data file of the study.")
            name = PurePath(str(study.data["file"])).name
            return read_samples(text, name, study.data.get("columns"))
        if "runs" in study.data:
            return self.samples_of_runs(study.data["runs"])
        if LM_EVAL in study.data:
            return harness_samples(study)

        def count(context: str, question: str) -> int:
            request = RunRequest(context=context, question=question, model=study.model)
            return prompt_size(self._worker, request).tokens

        return make_samples(study.data, count)

    def samples_of_runs(self, slugs: Sequence[str]) -> tuple[Sample, ...]:
        """The texts of stored runs that the viewer may read, as samples."""
        for slug in slugs:
            self._access.check_run(slug)
        return samples_of_runs(self._read(repository.load_requests, slugs))

    def cost(self, study: Study, text: str = "") -> Cost:
        """What it takes, from a few of its prompts that are counted; waits.

        Of a task only these few are made.
        """
        self._access.user(change=True)
        study.validate()
        if "task" not in study.data:
            return self._cost(study, self.samples_of(study, text))
        self._limits.check_task(study.data)
        few = min(COUNTED, study.data["samples"])
        less = replace(study, data={**study.data, "samples": few})
        some, share = self._cost(less, self.samples_of(less)), study.data["samples"] / few
        return replace(
            some,
            samples=round(share * some.samples),
            points=round(share * some.points),
            tokens=round(share * some.tokens),
            seconds=share * some.seconds,
        )

    def _cost(self, study: Study, samples: tuple[Sample, ...]) -> Cost:
        points = study.points()
        step = max(1, len(samples) // COUNTED)
        counted = {
            sample.id: prompt_size(self._worker, request_of(study, sample, points))
            for sample in samples[::step]
        }
        characters = sum(len(s.context) + len(s.question) for s in samples if s.id in counted)
        rate = sum(size.tokens for size in counted.values()) / max(1, characters)
        sizes = {
            sample.id: PromptSize(round(rate * (len(sample.context) + len(sample.question))), 0)
            for sample in samples
        }
        return cost(study, sizes | counted, dict.fromkeys(sizes, len(points)))

    def start(self, study: Study, samples: tuple[Sample, ...]) -> str:
        """Save a study, or lead the one of that name on, and have it run; returns its slug."""
        owner = self._access.user(change=True)
        study.validate()
        self._check_room(study, owner, sum(len(sample.context) for sample in samples) + 1)
        self._check_queue(owner)
        slug = self._store.save(study, samples, owner)
        self._want(slug)
        return slug

    def add(self, text: str) -> str:
        """Store a study that was exported with its data, a hostile text; returns its slug.

        Raises:
            CkvError: it is wrong or over a limit, or is not what stands under its name.
        """
        owner = self._access.user(change=True)
        exported = read_export(text)
        self._check_room(exported.study, owner, len(text))
        return self._store.add(exported, owner)

    def resume(self, slug: str) -> None:
        """Have a study run on; what failed and may pass is tried again."""
        self._access.check_run(slug, "change")
        stored = self._read(repository.load_study, slug)
        if not stored.is_wanted:
            self._check_queue(stored.owner)
        check_room(self._database, self._limits, stored.owner)
        self._want(slug)

    def view(self, slug: str) -> StudyView:
        self._access.check_run(slug)
        return self._view(self._read(repository.load_study, slug))

    def reading(self, slug: object) -> Reading:
        """A study with its results; a client may send anything as its name."""
        if not is_slug(slug):
            raise StorageError(NO_STUDY)
        stored = self.view(str(slug)).stored
        return _read(self, stored.slug, (write_study(stored.study), stored.counts))

    def samples(self, slug: str) -> list[Sample]:
        self._access.check_run(slug)
        return self._read(repository.load_samples, slug)

    def results(self, slug: str) -> list[SampleResult]:
        self._access.check_run(slug)
        return self._read(repository.load_results, slug)

    # --- the app ------------------------------------------------------------------------------

    def stop(self, slug: str, reason: str) -> None:
        """Stop anybody's study, for the caller has checked that this is allowed.

        It also ends a run of one sample that another server runs, which stops at its next event.
        """
        self._read(repository.run_owner, slug)  # RunMissingError where there is none
        self._store.end(slug, "cancelled", reason)
        self._stop_jobs(slug)

    def close(self, timeout_s: float) -> None:
        """Stop; studies that were to be run are continued at the next start."""
        self._closing = True
        self._stop_jobs()
        self._wake.set()
        self._thread.join(timeout_s)  # it may be asking the database, which is closed next

    # --- parts --------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Begin what is wanted until the app closes."""
        while not self._closing:
            try:
                self._begin_turns()
            except Exception:
                LOGGER.exception("Studies cannot be run.")
            self._wake.wait(CHECK_S)
            self._wake.clear()

    def _begin_turns(self) -> None:
        """Have the oldest study of each owner run that no other server runs."""
        for slug, owner in self._read(repository.wanted_studies).items():
            if self._closing or owner in self._turns:
                continue
            if not self._access.may_work(owner):
                self._store.end(slug, "cancelled", DISABLED)
            elif self._store.start(slug):
                served = functools.partial(self._store.served_by, slug)
                jobs = StudyJobs(self._worker, owner, served)
                turn = _Turn(slug, owner, jobs)
                with self._lock:
                    self._turns[owner] = turn
                threading.Thread(
                    target=self._run, args=(turn,), name=f"study-{slug}", daemon=True
                ).start()

    def _run(self, turn: _Turn) -> None:
        """One study to its end; the reason is kept where it ends early."""
        reason: str | None = ""
        next_at_once = False
        try:
            self._run_samples(turn)
        except RunCancelledError:
            reason = None  # the reason stands already
        except CkvError as error:
            reason = str(error)
        except Exception:
            LOGGER.exception("A study failed.")
            reason = "The study failed for a reason that is not known; the log has the details."
        try:
            if reason is not None and not self._closing:  # of an app that closes, it is wanted
                self._store.end(turn.slug, "failed", reason)
            self._store.release(turn.slug)
        except Exception:
            LOGGER.exception("The end of a study cannot be noted; it is run again.")
        else:
            next_at_once = True
        with self._lock:
            del self._turns[turn.owner]
        if next_at_once:
            self._wake.set()

    def _run_samples(self, turn: _Turn) -> None:
        slug, study = turn.slug, self._read(repository.load_study, turn.slug).study
        samples = self._read(repository.load_samples, slug)
        standing = self._read(repository.done_keys, slug)
        commit = _Committed(functools.partial(self._patiently, turn, self._store.commit, slug))
        if self._cluster is None:
            progresses = run_study(study, samples, standing, turn.jobs, commit)
        else:
            progresses = self._on_cluster(self._cluster, turn, study, samples, commit)
        for progress in progresses:
            if self._closing or slug not in self._read(repository.wanted_studies):
                raise RunCancelledError
            if not self._access.may_work(turn.owner):
                raise ConfigError(DISABLED)
            check_room(self._database, self._limits, turn.owner)
            turn.progress = progress

    def _on_cluster(
        self,
        cluster: Cluster,
        turn: _Turn,
        study: Study,
        samples: Sequence[Sample],
        commit: Commit,
    ) -> Iterator[Progress]:
        """A cluster works at one study at a time, at some samples of each while others wait."""
        standing = self._read(repository.done_keys, turn.slug)

        def stand(results: Sequence[SampleResult]) -> None:
            commit(results)
            standing.update(result.key for result in results)

        served = functools.partial(self._store.served_by, turn.slug)
        while True:
            with self._cluster_line.turn():
                ran = cluster.run_study(study, samples, {*standing}, stand, served)
                with closing(ran):
                    for count, progress in enumerate(ran, 1):
                        yield progress
                        is_over = count >= CLUSTER_TURN * cluster.workers
                        if is_over and self._cluster_line.others_wait:
                            break
                    else:
                        return

    def _patiently(self, turn: _Turn, write: Callable[..., None], *values: object) -> None:
        """Write, also to a database that others keep busy for a while."""
        for wait_s in WAITS_S:
            try:
                write(*values)
            except RunMissingError:
                raise
            except StorageError:
                LOGGER.warning("A study's results cannot be stored; trying again.")
                turn.jobs.rest(wait_s)
            else:
                return
        write(*values)

    def _check_room(self, study: Study, owner: str | None, more: int) -> None:
        if owner in self._read(repository.slugs_of_name, study.name):
            check_room(self._database, self._limits, owner)
        else:
            check_new_run(self._database, self._limits, owner, more)

    def _check_queue(self, owner: str | None) -> None:
        waiting = [*self._read(repository.wanted_studies).values()]
        own = waiting.count(owner) if self._access.with_logins else None
        self._limits.check_queue(len(waiting), own, "studies")

    def _want(self, slug: str) -> None:
        self._store.want(slug)
        self._wake.set()

    def _stop_jobs(self, slug: str | None = None) -> None:
        with self._lock:
            turns = [*self._turns.values()]
        for turn in turns:
            if slug in (None, turn.slug):
                turn.jobs.stop()

    def _view(self, stored: StoredStudy) -> StudyView:
        with self._lock:
            turn = self._turns.get(stored.owner)
            here = turn is not None and turn.slug == stored.slug
            progress = turn.progress if turn is not None and here else None
        elsewhere = stored.is_wanted and stored.server not in (None, self._server)
        return StudyView(stored=stored, running=here or elsewhere, progress=progress)


@functools.lru_cache(maxsize=KEPT_READINGS)
def _read(studies: Studies, slug: str, _: Hashable) -> Reading:
    """Once for all charts and files of one state; the caller has checked the viewer."""
    # Contexts are long, and nothing here reads them.
    samples = [replace(sample, context="") for sample in studies.samples(slug)]
    return Reading(studies.view(slug).stored.study, samples, studies.results(slug), slug)


class _Committed:
    """Hands results on, and ends a study whose samples all fail for one reason."""

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
