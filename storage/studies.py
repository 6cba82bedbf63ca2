"""Runs of many samples: every method has committed when it returns; any thread may call."""

from collections.abc import Collection, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ckv_core.experiment.decide import random_order
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.records import ModelInfo
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from storage import repository, sample_rows
from storage.database import Database, database_url, open_database
from storage.records import StoredStudy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckv_core.studies.export import Exported

RESULTS_AT_ONCE = 500


@contextmanager
def open_studies(url: str | None = None) -> "Iterator[Studies]":
    """The studies of the app's database, or of another.

    Raises:
        StorageError: it cannot be opened.
    """
    with closing(open_database(url or database_url())) as database:
        yield Studies(database)


class Studies:
    """All methods raise StorageError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, study: Study, samples: Sequence[Sample], owner: str | None = None) -> str:
        """Make a study, or lead the one of that name on; returns its slug.

        Samples that are new come in a random order behind those that are there: the first of them
        count while others are still to be run.

        Raises:
            ConfigError: something changed that decided the results which stand.
        """
        order = random_order([sample.source or sample.context for sample in samples])
        shuffled = [samples[at] for at in order]
        return self._database.tell(
            sample_rows.save_study, study, shuffled, owner, datetime.now(UTC)
        )

    def add(self, exported: "Exported", owner: str | None = None) -> str:
        """Store a study of a file, or its results to the one of that name; returns its slug.

        Raises:
            ConfigError: the study of that name has other samples, another setting or model.
        """
        now = datetime.now(UTC)
        with self._database.write() as session:
            slug = sample_rows.save_study(session, exported.study, exported.samples, owner, now)
            if exported.model is not None:
                versions = dict(exported.environment or {})
                sample_rows.set_facts(session, slug, asdict(exported.model), versions)
        for at in range(0, len(exported.results), RESULTS_AT_ONCE):  # others wait meanwhile
            with self._database.write_in_turn() as session:
                part = exported.results[at : at + RESULTS_AT_ONCE]
                sample_rows.save_results(session, slug, part, now)
        self.rest(slug)
        return slug

    def slug(self, name: str) -> str:
        """Of the study of that name, whoever owns it.

        Raises:
            RunMissingError: there is none.
            ConfigError: several users have one of that name.
        """
        return self._database.ask(sample_rows.find_slug, name, None, of_anybody=True)

    def has(self, name: str, owner: str | None) -> bool:
        """Whether that owner has a study of that name."""
        try:
            self._database.ask(sample_rows.find_slug, name, owner)
        except repository.RunMissingError:
            return False
        return True

    def load(self, slug: str) -> StoredStudy:
        """What was asked, and how far it is."""
        return self._database.ask(sample_rows.load_study, slug)

    def samples(self, slug: str) -> list[Sample]:
        """All, in order."""
        return self._database.ask(sample_rows.load_samples, slug)

    def requests(self, runs: Sequence[str]) -> dict[str, CompareRequest]:
        """What these stored runs were asked, by slug.

        Raises:
            RunMissingError: one of them is not there.
        """
        with self._database.read() as session:
            return {slug: repository.load_request(session, slug) for slug in runs}

    def results(self, slug: str) -> list[SampleResult]:
        """Of the points that the study has now, in the order of samples and points."""
        return self._database.ask(sample_rows.load_results, slug)

    def standing(self, slug: str) -> set[Key]:
        """Keys of what is done, or fails each time."""
        return self._database.ask(sample_rows.standing, slug)

    def commit(self, slug: str, results: Collection[SampleResult]) -> None:
        """Store the results of one sample, all or none; what is done already stays as it is."""
        self._database.tell(sample_rows.save_results, slug, results, datetime.now(UTC))

    def served_by(self, slug: str, model: ModelInfo, environment: "Mapping[str, str]") -> None:
        """Note the model that serves it, and the versions.

        Raises:
            ConfigError: results stand that another model of that name gave.
        """
        self._database.tell(sample_rows.set_facts, slug, asdict(model), dict(environment))

    def claim(self, slug: str) -> bool:
        """Have this server run a wanted study; False where another server that lives does."""
        now = datetime.now(UTC)
        return self._database.tell(sample_rows.claim, slug, self._database.server, now)

    def release(self, slug: str) -> None:
        """Let another server run what this one no longer runs."""
        self._database.tell(sample_rows.release, slug, self._database.server)

    def want(self, slug: str) -> None:
        """The app is to run it, also after a restart."""
        self._database.tell(sample_rows.want, slug)

    def rest(self, slug: str, reason: str = "") -> bool:
        """The app runs it no more: it is whole, or was stopped for this reason.

        False if there is no such run of many samples.
        """
        return self._database.tell(sample_rows.rest, slug, reason, datetime.now(UTC))

    def wanted(self) -> dict[str, str | None]:
        """Slug -> owner of the studies that the app is to run, oldest first."""
        return self._database.ask(sample_rows.wanted)
