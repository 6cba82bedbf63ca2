"""Bundles and result files: what is written, what travels beside a run, what an import makes."""

import json
from datetime import UTC, datetime

import pytest

from ckv_core.errors import StorageError
from ckv_core.experiment.result_json import to_json
from storage import library
from storage.bundle import MAX_RUNS, is_same_content, run_json, write_bundle
from storage.bundle_import import UNFINISHED, ImportReport, import_bundle
from storage.recorder import Recorder
from storage.records import RunFilter
from tests.factories.events import assert_same_result, big_events
from tests.storage.bundles import REQUEST, assert_refused, exported, made, resealed, run_values
from tests.storage.conftest import load

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)]


def child(database, parent: str, kind="fork") -> str:
    slug = made(database)
    link = "UPDATE runs SET parent_slug = ?, lineage = ? WHERE slug = ?"
    with database.write() as session:
        session.connection().exec_driver_sql(link, (parent, kind, slug))
    return slug


def annotated(database) -> str:
    slug = made(database)
    database.write_with(library.annotate, slug, "A title", "My <b>note</b>", ["good", "a-b"])
    return slug


def listed(database, slug: str, owner: str = ""):
    runs, _ = database.read_with(library.list_runs, RunFilter(owner=owner))
    return next(run for run in runs if run.slug == slug)


def parent_of(database, slug: str):
    return database.read_with(library.relatives, slug)[0]


def result_file(database, slug: str, **changes) -> bytes:
    return json.dumps(to_json(load(database, slug).result) | changes).encode()


def test_the_same_runs_give_the_same_bytes(there):
    assert exported(there, slug := made(there)) == exported(there, slug, slug)
    assert "readings" not in run_json(load(there, slug))["result"]


def test_a_run_that_is_not_over_or_not_there_is_not_exported(there):
    slug = Recorder(there).create(REQUEST)
    for slugs, match in (
        ([slug], "not over"),
        (["a" * 12], "no run"),
        ([], "1 to 1000"),
        ([f"{number:012}" for number in range(MAX_RUNS + 1)], "1 to 1000 runs; got 1001"),
    ):
        with pytest.raises(StorageError, match=match):
            exported(there, *slugs)


def test_a_taken_slug_with_other_content_gets_a_new_one(here, there):
    slugs = [made(there), made(there)]
    data = exported(there, *slugs)
    import_bundle(here, data)
    with here.write() as session:
        session.connection().exec_driver_sql(
            "DELETE FROM arrays WHERE name = 'token_texts' AND result_id IN (SELECT results.id "
            f"FROM results JOIN runs ON runs.id = run_id WHERE slug = '{slugs[0]}')"
        )
    report = import_bundle(here, data)
    assert report.skipped == [slugs[1]]
    assert report.imported == [report.renamed[slugs[0]]]
    assert is_same_content(load(here, report.imported[0]), load(there, slugs[0]))
    assert slugs[0] in report.sentence


def test_a_run_that_was_deleted_here_is_imported_under_a_new_slug(here, there):
    data = exported(there, slug := made(there))
    import_bundle(here, data)
    here.write_with(library.delete_runs, [slug], datetime.now(UTC))
    report = import_bundle(here, data)
    assert report.skipped == []
    assert report.imported == [report.renamed[slug]]
    assert is_same_content(load(here, report.imported[0]), load(there, slug))


def test_title_note_and_tags_travel_where_they_may(here, there):
    slug = annotated(there)
    values = run_values(there.read_with(write_bundle, [slug], without_notes={slug}))
    assert "note" not in json.dumps(values)
    assert not {"note", "tags", "lineage"} & values.keys()
    (bare,) = import_bundle(here, resealed({**values, "slug": "b" * 12})).imported
    assert (listed(here, bare).note, listed(here, bare).tags) == ("", ())
    import_bundle(here, exported(there, slug))
    run = listed(here, slug)
    assert (run.title, run.note) == ("A title", "My <b>note</b>")
    assert (run.tags, run.pinned) == (("a-b", "good"), False)
    assert here.read_with(library.list_runs, RunFilter(text="note"))[1] == 1


def test_lineage_holds_where_the_parent_comes_too_or_is_the_importers(here, there):
    parent = made(there)
    first, rerun, fork = child(there, parent), child(there, parent, "rerun"), child(there, parent)
    import_bundle(here, exported(there, rerun))
    assert parent_of(here, rerun) is None
    import_bundle(here, exported(there, first, parent), owner="ann")
    import_bundle(here, exported(there, fork), owner="ann")
    for slug in (first, fork):
        found = parent_of(here, slug)
        assert (found.slug, found.kind) == (parent, "fork")
    theirs, another = child(there, parent), child(there, parent)
    import_bundle(here, exported(there, theirs), owner="bob")
    assert parent_of(here, theirs) is None, "somebody else's run"
    report = import_bundle(here, exported(there, parent, another), owner="bob")
    assert parent_of(here, another).slug == report.renamed[parent]
    own = run_values(exported(there, slug := made(there)))
    import_bundle(here, resealed(own | {"lineage": {"parent": slug, "kind": "fork"}}))
    assert parent_of(here, slug) is None, "its own parent"


def test_a_result_file_becomes_a_run_once(here, there):
    source = made(there)
    data = result_file(there, source)
    (slug,) = import_bundle(here, data).imported
    run = load(here, slug)
    pieces = run.result.prompt.pieces
    first, end = run.result.prompt.context_tokens
    assert run.request.context == "".join(pieces[first:end])
    assert (run.state, run.owner) == ("done", None)
    assert "from a result file" in run.result.environment.pop("imported")
    assert_same_result(run.result, load(there, source).result)
    assert import_bundle(here, data) == ImportReport(skipped=[slug])


def test_a_result_without_an_end_is_a_failed_run_and_one_without_model_is_refused(here, there):
    slug = made(there, big_events(tokens=16, variants=1)[:-1])
    (new,) = import_bundle(here, result_file(there, slug)).imported
    assert (load(here, new).state, load(here, new).reason) == ("failed", UNFINISHED)
    data = result_file(there, slug, model=None, prompt=None, variants=[])
    assert_refused(here, data, "no model and prompt")


def test_imports_count_against_the_limit_of_their_owner(here, there):
    slugs = [made(there) for _ in range(3)]
    import_bundle(here, exported(there, slugs[0]), owner="bob", most=1)
    import_bundle(here, exported(there, slugs[1]), owner="ann", most=2)
    both = exported(there, slugs[1], slugs[2])
    assert import_bundle(here, both, owner="ann", most=2).imported == [slugs[2]]
    new = made(there)
    with pytest.raises(StorageError, match="1 more would make over 2"):
        import_bundle(here, exported(there, new), owner="ann", most=2)
    assert here.read_with(library.list_runs, RunFilter(owner="ann"))[1] == 2
    # Nothing new is stored, so a full library takes it.
    assert import_bundle(here, both, owner="ann", most=2).skipped == slugs[1:]
