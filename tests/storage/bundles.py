"""Bundles to import: whole, rewritten, and of any content under right checksums."""

import io
import json
import zipfile
from collections.abc import Iterable
from typing import Any

import pytest

from ckv_core.errors import StorageError
from ckv_core.records.events import RunEvent
from ckv_core.records.external_selection import read_external_selection
from ckv_core.records.run_request import RunRequest
from storage.bundle import entry_name, import_bundle, write_bundle
from storage.database import Database
from tests.factories.runs import selection_file
from tests.storage.conftest import load, record

REQUEST = RunRequest(
    context="The long text.",
    question="What?",
    answer="This.",
    protect=("long", "tokens:0-1"),
    own_indices=read_external_selection(selection_file([[[0, 2], []], None], "<b>Mine</b>")),
)


def made(database: Database, stream: Iterable[RunEvent] | None = None) -> str:
    return record(database, REQUEST, stream)


def exported(database: Database, *slugs: str) -> bytes:
    return database.read_with(write_bundle, slugs)


def rewritten(data: bytes, changes: dict[str, bytes | None], extra=()) -> bytes:
    """The same zip with entries replaced, left out (None) or added."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        files = [(name, changes.get(name, old.read(name))) for name in old.namelist()]
    return zipped([*((name, content) for name, content in files if content is not None), *extra])


def sealed(slug: str, text: bytes) -> bytes:
    """A bundle of one run with any content."""
    return zipped([(entry_name(slug), text)])


def zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return out.getvalue()


def run_values(data: bytes) -> dict[str, Any]:
    """The values of a bundle's first run."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return dict(json.loads(archive.read(archive.namelist()[0])))


def resealed(values: dict[str, Any]) -> bytes:
    """A bundle of a run of these values."""
    return sealed(values["slug"], json.dumps(values).encode())


def run_count(database: Database) -> int:
    with database.read() as session:
        return session.connection().exec_driver_sql("SELECT count(*) FROM runs").scalar()


def assert_refused(database: Database, data: bytes, match: str = "refused") -> None:
    before = run_count(database)
    with pytest.raises(StorageError, match=match) as caught:
        import_bundle(database, data)
    sentence = str(caught.value)
    assert "nothing was imported" in sentence
    assert (sentence[-1], "\n" in sentence, len(sentence) < 300) == (".", False, True), sentence
    assert run_count(database) == before


def assert_refused_or_loadable(database: Database, data: bytes) -> None:
    """Either nothing changed, or one more run is there, or the one that is there already."""
    before = run_count(database)
    try:
        report = import_bundle(database, data)
    except StorageError:
        assert run_count(database) == before
        return
    assert len(report.imported) + len(report.skipped) == 1
    assert run_count(database) == before + len(report.imported)
    for slug in report.imported + report.skipped:
        load(database, slug)
        assert exported(database, slug)
