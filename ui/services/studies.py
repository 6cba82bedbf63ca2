"""Runs of many samples as pages start, resume and read them; services.py has what any run can."""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from ckv_core.errors import ConfigError, StorageError
from ckv_core.experiment.data import read_samples, samples_of_runs
from ckv_core.experiment.export import read_export
from ckv_core.experiment.harness import LM_EVAL, harness_samples
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.study_file import write_study
from ckv_core.experiment.tasks import make_samples
from ckv_core.records.grid import Cost, cost
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import WorkerClient
from storage import repository
from storage.database import Database
from storage.repository import is_slug
from ui.accounts.access import Access
from ui.services.library import Room
from ui.services.runs import Runs
from ui.services.study_jobs import prompt_size
from ui.tables.decision import decision_line

KEPT_READINGS = 8  # a big study takes a second
KEPT_DECISIONS = 256
NO_STUDY = "There is no run of many samples of this name; see the list of runs."
COUNTED = 5  # prompts that are tokenised for an estimate


class Studies:
    """All that pages know of studies; any thread may call any method.

    A study is a run of many samples: services list, stop, annotate, share and delete it as any run.
    Somebody else's study fails exactly like one that does not exist. Every method raises
    StorageError if the database fails.
    """

    def __init__(
        self, database: Database, access: Access, room: Room, worker: WorkerClient, runs: Runs
    ) -> None:
        self._read, self._store = database.read_with, runs.recorder
        self._access, self._room, self._worker, self._runs = access, room, worker, runs

    def samples_of(self, study: RunRequest, text: str = "") -> tuple[Sample, ...]:
        """The samples of a study's task, or of its file's text; waits for tokens and data sets."""
        self._access.user(change=True)
        study.validate()
        if "task" in study.data:
            self._room.limits.check_task(study.data)
        if "file" in study.data:
            if not text.strip():
                raise ConfigError("Give the file with the samples.")
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

    def cost(self, study: RunRequest, text: str = "") -> Cost:
        """What it takes, from a few of its prompts that are counted; waits.

        Of a task only these few are made.
        """
        self._access.user(change=True)
        study.validate()
        if "task" not in study.data:
            return self._cost(study, self.samples_of(study, text))
        self._room.limits.check_task(study.data)
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

    def _cost(self, study: RunRequest, samples: tuple[Sample, ...]) -> Cost:
        step = max(1, len(samples) // COUNTED)
        counted = {
            each.id: prompt_size(self._worker, each.request(study)) for each in samples[::step]
        }
        characters = sum(len(s.context) + len(s.question) for s in samples if s.id in counted)
        rate = sum(size.tokens for size in counted.values()) / max(1, characters)
        tokens = {s.id: round(rate * (len(s.context) + len(s.question))) for s in samples}
        tokens |= {name: size.tokens for name, size in counted.items()}
        return cost(study, [(count, len(study.points())) for count in tokens.values()])

    def start(self, study: RunRequest, samples: tuple[Sample, ...]) -> str:
        """Save a study, or lead the one of that name on, and have it run; returns its slug."""
        owner = self._access.user(change=True)
        study.validate()
        self._check_room(study, owner, sum(len(sample.context) for sample in samples) + 1)
        self._runs.check_queue(owner)
        slug = self._store.save(study, samples, owner)
        self._runs.want(slug)
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
            self._runs.check_queue(stored.owner)
        self._room.check(stored.owner)
        self._runs.want(slug)

    def reading(self, slug: object) -> Reading:
        """A study with its results; a client may send anything as its name."""
        return _read(self, *self._version(slug))

    def decision(self, slug: object) -> dict[str, Any]:
        """Its decision in a few words."""
        return _decided(self, *self._version(slug))

    def _version(self, slug: object) -> tuple[str, Hashable]:
        """The slug, and what changes with the definition or the results."""
        if not is_slug(slug):
            raise StorageError(NO_STUDY)
        self._access.check_run(str(slug))
        stored = self._read(repository.load_study, str(slug))
        return stored.slug, (write_study(stored.request), stored.counts, stored.state)

    def samples(self, slug: str) -> list[Sample]:
        self._access.check_run(slug)
        return self._read(repository.load_samples, slug)

    def results(self, slug: str) -> list[SampleResult]:
        self._access.check_run(slug)
        return self._read(repository.load_results, slug)

    def _check_room(self, study: RunRequest, owner: str | None, more: int) -> None:
        if owner in self._read(repository.slugs_of_name, study.name):
            self._room.check(owner)
        else:
            self._room.check_new(owner, more)


@functools.lru_cache(maxsize=KEPT_READINGS)
def _read(studies: Studies, slug: str, _: Hashable) -> Reading:
    """Once for all charts and files of one state; the caller has checked the viewer."""
    # Contexts are long, and nothing here reads them.
    samples = [replace(sample, context="") for sample in studies.samples(slug)]
    stored = studies._read(repository.load_study, slug)
    return Reading(stored.request, samples, studies.results(slug), slug, stored.facts)


@functools.lru_cache(maxsize=KEPT_DECISIONS)
def _decided(studies: Studies, slug: str, version: Hashable) -> dict[str, Any]:
    return decision_line(_read(studies, slug, version).decision)
