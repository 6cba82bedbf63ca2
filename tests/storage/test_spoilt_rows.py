"""One bad row: lists, searches and filters hold the other runs, and what needs it names it."""

from contextlib import closing
from datetime import timedelta

import pytest
from sqlalchemy import text

from ckv_core.errors import StorageError
from ckv_core.records.run_request import RunRequest
from storage import credentials, library, repository
from storage.bundle import write_bundle, write_bundles
from storage.database import default_url, open_database
from storage.records import RunFilter, RunNotes
from storage.repository import key_of
from storage.usage import usage_by_owner
from tests.storage.conftest import make, record

REQUEST = RunRequest(context="one two", question="Where is the door?", answer="here")
OF_RUN = "(SELECT id FROM runs WHERE slug = :slug)"
OF_RESULT = f"(SELECT id FROM results WHERE run_id = {OF_RUN})"
SPOILT = {
    "request": "UPDATE runs SET request = '{' WHERE slug = :slug",
    "request of another kind": "UPDATE runs SET request = '[1]' WHERE slug = :slug",
    "variants of another kind": "UPDATE runs SET request = '{\"variants\": 7}' WHERE slug = :slug",
    "timings": "UPDATE runs SET timings_ms = '{' WHERE slug = :slug",
    "model": "UPDATE runs SET model = '[[' WHERE slug = :slug",
    "memory": "UPDATE runs SET memory = '[' WHERE slug = :slug",
    "creation": "UPDATE runs SET created_at = 'yesterday' WHERE slug = :slug",
    "a document": f"UPDATE results SET document = '{{', method = 'full', answer_found = 0 WHERE "
    f"run_id = {OF_RUN}",
    "a document of another method": f"UPDATE results SET document = '{{', answer_found = 0 WHERE "
    f"run_id = {OF_RUN}",
    "an empty document": f"UPDATE results SET document = '{{}}' WHERE run_id = {OF_RUN}",
    "a list as document": f"UPDATE results SET document = '[]' WHERE run_id = {OF_RUN}",
    "an array": f"UPDATE arrays SET data = x'00' WHERE result_id IN {OF_RESULT}",
}


@pytest.fixture
def here(tmp_path):
    """A SQLite database; PostgreSQL takes no such values."""
    with closing(open_database(default_url(tmp_path))) as opened:
        yield opened


@pytest.mark.parametrize("is_waiting", [False, True], ids=["over", "waiting"])
@pytest.mark.parametrize("change", SPOILT.values(), ids=SPOILT)
def test_the_others_are_listed_and_the_bad_one_is_named(here, change, is_waiting):
    asked = {"question": REQUEST.question, "context": REQUEST.context}
    good = record(here, REQUEST)
    bad = make(here, "Bad", **asked) if is_waiting else record(here, REQUEST, title="Bad")
    with here.write() as session:
        session.execute(text(change), {"slug": bad})
    listed, total = here.read_with(library.list_runs)
    assert ({run.slug for run in listed}, total) == ({good, bad}, 2)
    found, _ = here.read_with(library.list_runs, RunFilter(text="door"))
    assert {run.slug for run in found} == {good, bad}
    for answer in ("kept", "lost"):
        here.read_with(library.list_runs, RunFilter(answer=answer))
    assert here.read_with(library.choices)["models"]
    assert here.read_with(usage_by_owner)[0].runs == 2
    assert here.read_with(repository.load_run, good).state == "done"
    if not (is_waiting and ("UPDATE results" in change or "arrays" in change)):  # it has none yet
        for act in (
            lambda: here.read_with(repository.load_run, bad),
            lambda: here.read_with(write_bundle, [good, bad]),
        ):
            with pytest.raises(StorageError, match=f"Run {bad} "):
                act()
        left_out: list[StorageError] = []
        with here.read() as session:
            ((count, _),) = write_bundles(session, [bad, good], left_out.append)
        assert (count, [str(each).startswith(f"Run {bad} ") for each in left_out]) == (1, [True])
    now = here.read_with(repository.load_run, good).created_at
    here.write_with(library.annotate, bad, "Renamed", "zebra", ["x"])
    here.write_with(library.add_tag, [bad], "y")
    assert here.read_with(repository.load_notes, bad) == RunNotes("zebra", ("x", "y"))
    (found,), _ = here.read_with(library.list_runs, RunFilter(text="zebra"))
    assert (found.slug, found.title) == (bad, "Renamed")
    link = {"scope": "read", "run_id": here.read_with(key_of, bad)}
    token = here.write_with(credentials.create, None, "share", now=now, days=None, **link)
    assert here.read_with(credentials.shared_slug, token, now) == bad
    here.write_with(library.delete_runs, [bad], now)
    assert [run.slug for run in here.read_with(library.list_runs)[0]] == [good]
    here.write_with(library.restore_runs, [bad], now - timedelta(1))
    assert here.read_with(library.list_runs)[1] == 2
