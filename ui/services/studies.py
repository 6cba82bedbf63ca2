"""Studies in the app: saved, run one after another by its worker, and gone on with after a restart.

Pages only watch. A study runs sample by sample, so that runs of all users come between.
"""

import functools
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from ckv_core.errors import CkvError, ConfigError, RunCancelledError, StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.studies.cluster import Cluster
from ckv_core.studies.data import read_samples, samples_of_runs
from ckv_core.studies.export import read_export
from ckv_core.studies.harness import LM_EVAL, harness_samples
from ckv_core.studies.records import Sample, SampleResult, Study
from ckv_core.studies.runner import (
    Cost,
    Progress,
    PromptSize,
    cost,
    request_of,
    run_study,
)
from ckv_core.studies.spec import write_study
from ckv_core.studies.tasks import make_samples
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Reply
from storage import studies as stored_studies
from storage.database import Database
from storage.repository import is_slug
from storage.study_records import StoredStudy
from storage.study_rows import missing_study
from ui.accounts.access import Access
from ui.limits import Limits
from ui.services.study_jobs import PREFIX, StudyJobs, prompt_size
from ui.tables.study import StudyReading

LOGGER = logging.getLogger(__name__)
CANCELLED = "Stopped on request."
KEPT_READINGS = 8  # bootstrap intervals of a big study take seconds
NO_STUDY = "There is no study of this name; see the list of studies."
MOST_FAILED = 3  # samples in a row that failed as a whole for one reason: it is not theirs
COUNTED = 5  # prompts that are tokenised for an estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """A study as it is now.

    Attributes:
        running: it is this study's turn, or its last sample's that a cluster still works at.
        progress: where it is; None while it does not run.
    """

    stored: StoredStudy
    running: bool
    progress: Progress | None

    @property
    def state(self) -> str:
        """`running`, `stopping`, `queued`, `done` or `unfinished`."""
        if self.running:
            return "running" if self.stored.wanted else "stopping"
        return self.stored.state


class Studies:
    """All that pages know of studies; any thread may call any method.

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
        self._store = stored_studies.Studies(database)
        self._access, self._limits, self._worker = access, limits, worker
        self._cluster = cluster
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._current: tuple[str, StudyJobs] | None = None
        self._progress: Progress | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="studies", daemon=True)

    def begin(self) -> None:
        """Go on with what was to be run when the app ended."""
        self._wake.set()
        self._thread.start()

    # --- pages --------------------------------------------------------------------------------

    def samples_of(self, study: Study, text: str = "") -> tuple[Sample, ...]:
        """The samples of a study's task, or of its file's text; waits for tokens and data sets."""
        self._access.user(change=True)
        study.validate()
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
            asked = CompareRequest(context=context, question=question, model=study.model)
            return prompt_size(self._worker, asked).tokens

        return make_samples(study.data, count)

    def samples_of_runs(self, slugs: Sequence[str]) -> tuple[Sample, ...]:
        """The texts of stored runs that the viewer may read, as samples."""
        for slug in slugs:
            self._access.check_run(slug)
        return samples_of_runs(self._store.requests(slugs))

    def cost(self, study: Study, samples: tuple[Sample, ...]) -> Cost:
        """What it takes, from a few of its prompts that are counted; waits."""
        self._access.user(change=True)
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
        points = study.validate()
        for sample in samples:
            self._limits.check(request_of(study, sample, points))
        self._check_room(study, owner)
        self._check_queue(owner)
        slug = self._store.save(study, samples, owner or "")
        self._want(slug)
        return slug

    def add(self, text: str) -> str:
        """Store a study that was exported with its data, a hostile text; returns its slug.

        Raises:
            CkvError: it is wrong or over a limit, or is not what stands under its name.
        """
        owner = self._access.user(change=True)
        exported = read_export(text)
        self._check_room(exported.study, owner)
        return self._store.add(exported, owner or "")

    def resume(self, slug: str) -> None:
        """Have a study run on; what failed is tried again."""
        stored = self._check(slug, change=True)
        if not stored.wanted:
            self._check_queue(stored.owner)
        self._want(slug)

    def cancel(self, slug: str) -> None:
        """Stop a study; what it has stays."""
        self._check(slug, change=True)
        self._store.rest(slug, CANCELLED)
        self._stop_current(slug)

    def delete(self, slug: str) -> None:
        self._check(slug, change=True)
        self._store.rest(slug)
        self._stop_current(slug)
        self._store.delete(slug)

    def every(self) -> list[StudyView]:
        """The viewer's studies, newest first."""
        return [self._view(each) for each in self._store.every(self._access.user() or "")]

    def view(self, slug: str) -> StudyView:
        return self._view(self._check(slug))

    def reading(self, slug: object) -> StudyReading:
        """A study with its results; a client may send anything as its name."""
        if not is_slug(slug):
            raise StorageError(NO_STUDY)
        stored = self.view(str(slug)).stored
        return _read(self, stored.slug, (write_study(stored.study), stored.done, stored.failed))

    def samples(self, slug: str) -> list[Sample]:
        self._check(slug)
        return self._store.samples(slug)

    def results(self, slug: str) -> list[SampleResult]:
        self._check(slug)
        return self._store.results(slug)

    # --- the app ------------------------------------------------------------------------------

    def take(self, reply: Reply) -> bool:
        """Take a reply of the worker; False if it is of no study."""
        if not getattr(reply, "job_id", "").startswith(PREFIX):
            return False
        with self._lock:
            current = self._current
        if current is not None:
            current[1].take(reply)
        return True

    def close(self) -> None:
        """Stop; studies that were to be run are gone on with at the next start."""
        self._closing = True
        self._stop_current()
        self._wake.set()

    # --- parts --------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Run what is wanted, the oldest first, until the app closes."""
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                while not self._closing and (wanted := self._store.wanted()):
                    self._run(next(iter(wanted)))
            except Exception:
                LOGGER.exception("Studies cannot be run.")
            if self._closing:
                return

    def _run(self, slug: str) -> None:
        """One study to its end; the reason is kept where it ends early."""
        stored = self._store.load(slug)
        jobs = StudyJobs(
            self._worker,
            stored.owner or None,
            self._limits.check_prompt,
            functools.partial(self._store.served_by, slug),
        )
        with self._lock:
            self._current = (slug, jobs)
        reason = ""
        try:
            self._run_samples(slug, stored.study, jobs)
        except RunCancelledError:
            return  # who cancelled has noted it
        except CkvError as error:
            reason = str(error)
        except Exception:
            LOGGER.exception("A study failed.")
            reason = "The study failed for a reason that is not known; the log has the details."
        finally:
            with self._lock:
                self._current, self._progress = None, None
        if not self._closing:  # of an app that closes, the study is still wanted
            self._store.rest(slug, reason)

    def _run_samples(self, slug: str, study: Study, jobs: StudyJobs) -> None:
        commit = _Committed(lambda results: self._store.commit(slug, results))
        samples, standing = self._store.samples(slug), self._store.standing(slug)
        if self._cluster is not None:
            progresses = self._cluster.run_study(
                study, samples, standing, commit, functools.partial(self._store.served_by, slug)
            )
        else:
            progresses = run_study(study, samples, standing, jobs, commit)
        for progress in progresses:
            if self._closing or slug not in self._store.wanted():
                raise RunCancelledError
            self._progress = progress

    def _check_room(self, study: Study, owner: str | None) -> None:
        known = self._store.every(owner or "")
        if study.name not in {each.study.name for each in known}:
            self._limits.check_saved(len(known), "studies")

    def _check_queue(self, owner: str | None) -> None:
        waiting = [*self._store.wanted().values()]
        own = waiting.count(owner or "") if self._access.with_logins else None
        self._limits.check_queue(len(waiting), own, "studies")

    def _want(self, slug: str) -> None:
        self._store.want(slug)
        self._wake.set()

    def _stop_current(self, slug: str | None = None) -> None:
        with self._lock:
            current = self._current
        if current is not None and slug in (None, current[0]):
            current[1].stop()

    def _check(self, slug: str, *, change: bool = False) -> StoredStudy:
        """The viewer's own study."""
        owner = self._access.user(change=change) or ""
        stored = self._store.load(slug)
        if stored.owner != owner:
            raise missing_study(slug)
        return stored

    def _view(self, stored: StoredStudy) -> StudyView:
        with self._lock:
            is_current = self._current is not None and self._current[0] == stored.slug
            progress = self._progress if is_current else None
        return StudyView(stored=stored, running=is_current, progress=progress)


@functools.lru_cache(maxsize=KEPT_READINGS)
def _read(studies: Studies, slug: str, _: Hashable) -> StudyReading:
    """Once for all charts and files of one state; whoever asks was let in before."""
    # Contexts are long, and nothing here reads them.
    samples = [replace(sample, context="") for sample in studies.samples(slug)]
    return StudyReading(slug, studies.view(slug).stored.study, samples, studies.results(slug))


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
