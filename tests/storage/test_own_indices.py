"""Kept positions that came with a request: stored, listed without, exported and imported."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, text

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.external_selection_json import read_external_selection
from storage import library
from storage.bundle import is_same_content, run_json, write_bundle
from storage.bundle_import import import_bundle
from storage.models import Run
from storage.recorder import Recorder
from tests.factories.runs import selection_file
from tests.factories.strategies import own_variants
from tests.storage.conftest import load
from tests.storage.test_bundle import sealed

OWN = read_external_selection(selection_file([[[0, 2], []], None], "<b>Mine</b>"))
REQUEST = CompareRequest(context="The long text.", variants=("full",), own_indices=OWN)


@given(st.lists(own_variants(), max_size=2).map(tuple))
def test_a_request_comes_back_with_its_own_indices(opened, variants):
    asked = CompareRequest(context="c", own_indices=variants)
    assert load(opened, Recorder(opened).create(asked)).request == asked


def test_a_list_of_runs_need_not_read_the_positions(database):
    slug = Recorder(database).create(REQUEST)
    with database.read() as session:
        (row,) = session.scalars(select(Run.request))
        (listed,) = library.list_runs(session)[0]
    assert "Mine" not in json.dumps(row)
    assert listed.slug == slug


def test_a_run_without_any_stores_nothing(database):
    Recorder(database).create(CompareRequest(context="c"))
    with database.read() as session:
        assert session.execute(text("SELECT own_indices FROM prompts")).scalar() is None


def failed_run(database, asked: CompareRequest) -> str:
    recorder = Recorder(database)
    slug = recorder.create(asked)
    recorder.fail(slug, "It was never run.")
    return slug


def test_a_bundle_takes_them_along(database, there):
    slug = failed_run(there, REQUEST)
    with there.read() as session:
        data = write_bundle(session, [slug])
    assert import_bundle(database, data).imported == [slug]
    assert load(database, slug).request == REQUEST
    assert is_same_content(load(database, slug), load(there, slug))


def test_a_bundle_of_an_earlier_version_has_none(database, there):
    slug = failed_run(there, REQUEST)
    values = run_json(load(there, slug))
    del values["request"]["own_indices"]
    import_bundle(database, sealed(slug, json.dumps(values).encode()))
    assert load(database, slug).request.own_indices == ()


def test_wrong_positions_in_a_bundle_are_refused(database, there):
    slug = failed_run(there, REQUEST)
    values = run_json(load(there, slug))
    values["request"]["own_indices"][0]["variants"][0]["retained"] = [1, 1]
    with pytest.raises(StorageError, match=r"own_indices\[0\].variants\[0\].retained"):
        import_bundle(database, sealed(slug, json.dumps(values).encode()))
