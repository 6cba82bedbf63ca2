"""Bundles damaged anywhere or wrong anywhere: refused with nothing stored, or runs to load."""

import hashlib
import io
import json
import os
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckv_core.errors import StorageError
from storage.bundle import FORMAT, MAX_RUNS, VERSION, entry_name
from storage.bundle_import import import_bundle
from storage.bundle_reader import MAX_MANIFEST_BYTES
from storage.database import Database
from tests.storage.conftest import load
from tests.storage.test_bundle import (
    assert_refused,
    exported,
    made,
    run_count,
    run_text,
    sealed,
    zipped,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(there):
    return exported(there, made(there))


@settings(suppress_health_check=list(HealthCheck))
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


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (6, b"\x63\x00", "not a whole zip"),  # made for a newer unzip
        (8, b"\x20\x00", "not a whole zip"),  # a patch of another file
        (8, b"\x01\x00", "encrypted"),
        (10, b"\x5d\x00", "unusual way"),
        (16, b"\x00\x00\x00\x00", "not a whole zip"),  # another sum of its bytes
        (24, b"\x89\x13\x00\x00", "not as long as it says"),
        (24, b"\x87\x13\x00\x00", "not a whole zip"),
        (40, b"\xff\xa1", "is a link"),
        (42, b"\xff\xff\xff\x7f", "not a whole zip"),  # begins behind the end
        (46, b"\xff", "not those that its manifest lists"),
    ],
)
def test_an_entry_that_lies_about_itself_is_refused(here, place, value, match):
    data = bytearray(sealed("a" * 12, b"x" * 5000))
    entry = data.rindex(b"PK\x01\x02")
    data[entry + place : entry + place + len(value)] = value
    assert_refused(here, bytes(data), match)


def test_a_name_that_is_no_text_is_refused(here):
    data = sealed("a" * 12, b"{}").replace(b"manifest.json", b"\xffanifest.json")
    entry = data.index(b"PK\x01\x02")
    said = bytearray(data)
    said[entry + 9] |= 0x08  # its name is UTF-8
    assert_refused(here, bytes(said), "not a whole zip")


def test_a_run_listed_twice_is_refused(here, there):
    slug = made(there)
    text = run_text(exported(there, slug))
    entry = {"slug": slug, "sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    assert_refused(here, sealed(slug, text, runs=[entry, entry]), "lists no run, or one twice")


def test_a_figure_that_is_not_finite_is_refused_as_such(here, there):
    slug = made(there)
    run = json.loads(run_text(exported(there, slug)))
    run["result"]["timings_ms"]["load"] = float("nan")
    assert_refused(here, sealed(slug, json.dumps(run).encode()), "a number that is not finite")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 2**31, 2**63, 10**400])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(suppress_health_check=list(HealthCheck))
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


def test_a_bundle_of_1001_runs_is_neither_written_nor_read(here, there):
    with pytest.raises(StorageError, match="1 to 1000 runs; got 1001"):
        exported(there, *(f"{number:012}" for number in range(MAX_RUNS + 1)))
    listed = [{"slug": f"{number:012}"} for number in range(MAX_RUNS + 1)]
    assert_refused(here, sealed("0" * 12, b"{}", runs=listed), "at most 1000 values")


def test_a_manifest_over_1_mib_is_refused(here):
    manifest = {"format": FORMAT, "version": VERSION, "runs": [], "more": ""}
    room = MAX_MANIFEST_BYTES - len(json.dumps(manifest))
    fits = manifest | {"more": os.urandom(room).hex()[:room]}
    over = fits | {"more": fits["more"] + "x"}
    assert_refused(here, zipped({"manifest.json": json.dumps(fits).encode()}), "lists no run")
    assert_refused(here, zipped({"manifest.json": json.dumps(over).encode()}), "over 1 MiB")


def test_runs_that_are_too_big_together_are_neither_written_nor_read(here, there, monkeypatch):
    slugs = [made(there), made(there)]
    data = exported(there, *slugs)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        total = sum(archive.getinfo(entry_name(slug)).file_size for slug in slugs)
    for module in ("storage.bundle", "storage.bundle_reader"):
        monkeypatch.setattr(f"{module}.MAX_TOTAL_BYTES", total - 1)
    with pytest.raises(StorageError, match="too big for this bundle"):
        exported(there, *slugs)
    assert_refused(here, data, "it holds more than")
    for module in ("storage.bundle", "storage.bundle_reader"):
        monkeypatch.setattr(f"{module}.MAX_TOTAL_BYTES", total)
    assert exported(there, *slugs) == data
    assert import_bundle(here, data).imported == slugs
