"""Laws of bundles, on both databases: they come back equal; wrong anywhere, they store nothing."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckv_core.errors import StorageError
from storage import recorder
from storage.bundle import ImportReport, import_bundle
from tests.factories.events import assert_same_result, folded
from tests.factories.hostile import JUNK, forged, paths
from tests.factories.strategies import events
from tests.storage.bundles import (
    REQUEST,
    assert_refused,
    assert_refused_or_loadable,
    exported,
    made,
    resealed,
    run_values,
)
from tests.storage.conftest import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(there):
    """A bundle of one run."""
    return exported(there, made(there))


@settings(max_examples=settings().max_examples // 3)
@given(stream=events())
def test_an_imported_run_equals_the_exported_one(there, opened, stream):
    slug = made(there, stream)
    data = exported(there, slug)
    assert import_bundle(opened, data).imported == [slug]
    run, original = load(opened, slug), load(there, slug)
    assert (run.request, run.state, run.reason) == (REQUEST, original.state, original.reason)
    assert (run.title, run.started_at) == (original.title, original.started_at)
    assert (run.created_at, run.finished_at) == (original.created_at, original.finished_at)
    assert run.result.environment.pop("imported").endswith("from a bundle")
    assert_same_result(run.result, folded(stream))
    assert import_bundle(opened, data) == ImportReport(skipped=[slug])


def test_a_failure_at_the_last_run_stores_none(here, there, monkeypatch):
    slugs = [made(there), made(there)]
    real, calls = recorder.end_run, []

    def failing(*values):
        calls.append(values)
        if len(calls) == 2:
            raise StorageError("The bundle: disk full, nothing was imported.")
        return real(*values)

    monkeypatch.setattr(recorder, "end_run", failing)
    assert_refused(here, exported(there, *slugs), "disk full")


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_anywhere_in_a_sealed_run_is_refused_or_a_run_to_load(here, whole, data):
    run = run_values(whole)
    place = data.draw(st.sampled_from([path for path in paths(run) if path]))
    assert_refused_or_loadable(here, resealed(forged(run, place, data.draw(JUNK))))
