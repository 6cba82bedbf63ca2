"""Bundles damaged anywhere or wrong anywhere: refused with nothing stored, or runs to load."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckv_core.errors import StorageError
from storage.bundle_import import import_bundle
from storage.database import Database, open_database
from tests.storage.test_bundle import exported, load, made, run_count, run_text, sealed


@pytest.fixture
def here(database):
    return database


@pytest.fixture(scope="module")
def there(new_url):
    opened = open_database(new_url())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def whole(there):
    return exported(there, made(there))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bundle_cut_or_damaged_anywhere_stores_nothing_or_all_of_it(here, whole, data):
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=8))
        broken = whole[:place] + junk + whole[place + len(junk) :]
    # Bytes that mean nothing, such as a date in the directory: then it is the whole run.
    assert_refused_or_loadable(here, broken)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_anywhere_in_a_sealed_run_is_refused_or_a_run_to_load(here, whole, data):
    run = json.loads(run_text(whole))
    slug = run["slug"]
    place = data.draw(st.sampled_from(paths(run)))
    owner = run
    for part in place[:-1]:
        owner = owner[part]
    owner[place[-1]] = data.draw(json_values)
    assert_refused_or_loadable(here, sealed(slug, json.dumps(run).encode()))


def paths(value: object, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where a JSON value has values, itself left out; of a list only its first three."""
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value[:3]))
    else:
        return []
    return [each for key, part in parts for each in ((*above, key), *paths(part, (*above, key)))]


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
