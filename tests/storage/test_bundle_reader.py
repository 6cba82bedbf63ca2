"""Bundles that are damaged, lie or are too big: one sentence, and nothing is stored."""

import functools
import io
import json
import operator
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckv_core.errors import StorageError
from storage import bundle_import
from storage.bundle import entry_name
from storage.bundle_import import import_bundle
from tests.storage.bundles import (
    assert_refused,
    assert_refused_or_loadable,
    exported,
    made,
    resealed,
    rewritten,
    run_values,
    sealed,
    zipped,
)

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)]
SLUG = "a" * 12


@pytest.fixture(scope="module")
def whole(there):
    """A bundle of one run."""
    return exported(there, made(there))


@pytest.fixture
def run(whole):
    """What that bundle says of the run."""
    return run_values(whole)


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/passwd",
        "runs/../../evil.json",
        "C:\\evil",
        "runs\\x.json",
        "runs/",
        "a\x00",
        "more",
    ],
)
def test_a_file_that_has_not_the_name_of_a_run_is_refused(here, whole, run, name):
    content = json.dumps(run).encode()
    assert_refused(here, rewritten(whole, {}, [(name, content)]), "called runs/SLUG.json")


def test_changed_repeated_and_too_many_files_are_refused(here, whole, run):
    entry = entry_name(run["slug"])
    assert_refused(here, rewritten(whole, {entry: b"{}"}), "wrong at slug")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = rewritten(whole, {}, [(entry, b"{}")])
    assert_refused(here, twice, "twice")
    assert_refused(here, zipped((f"runs/{at}", b"") for at in range(1_100)), "more than 1,000 runs")
    assert_refused(here, zipped([("manifest.json", b"{}")]), "called runs/SLUG.json")


def test_two_variants_of_one_spec_are_refused(here, run):
    run["result"]["variants"][1]["spec"] = run["result"]["variants"][0]["spec"]
    assert_refused(here, resealed(run), "the same SPEC")


def test_zip_bombs_are_refused_before_they_unfold(here, monkeypatch):
    assert_refused(here, sealed(SLUG, b" " * 1_030_000), "compressed too much")
    monkeypatch.setattr(bundle_import, "MAX_RUN_BYTES", 1000)
    assert_refused(here, sealed(SLUG, bytes(range(256)) * 8), "over 0 MiB")


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (6, b"\x63\x00", "not a whole zip"),  # made for a newer unzip
        (8, b"\x20\x00", "not a whole zip"),  # a patch of another file
        (8, b"\x01\x00", "encrypted"),
        (10, b"\x5d\x00", "unusual way"),
        (16, b"\x00\x00\x00\x00", "not a whole zip"),  # another sum of its bytes
        (24, b"\x89\x13\x00\x00", "not as long as it declares"),
        (24, b"\x87\x13\x00\x00", "not a whole zip"),
        (40, b"\xff\xa1", "is a link"),
        (42, b"\xff\xff\xff\x7f", "not a whole zip"),  # begins behind the end
        (46, b"\xff", "called runs/SLUG.json"),
    ],
)
def test_an_entry_that_lies_about_itself_is_refused(here, place, value, match):
    data = bytearray(sealed(SLUG, b"x" * 5000))
    entry = data.rindex(b"PK\x01\x02")
    data[entry + place : entry + place + len(value)] = value
    assert_refused(here, bytes(data), match)


def test_a_name_that_is_no_text_is_refused(here):
    data = bytearray(sealed(SLUG, b"{}").replace(b"runs/", b"\xffuns/"))
    data[data.index(b"PK\x01\x02") + 9] |= 0x08  # its name is UTF-8
    assert_refused(here, bytes(data), "not a whole zip")


def test_runs_that_are_too_big_together_are_neither_written_nor_read(here, there, monkeypatch):
    slugs = [made(there), made(there)]
    data = exported(there, *slugs)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        total = sum(archive.getinfo(entry_name(slug)).file_size for slug in slugs)

    def allow(most: int) -> None:
        for module in ("storage.bundle", "storage.bundle_import"):
            monkeypatch.setattr(f"{module}.MAX_TOTAL_BYTES", most)

    allow(total - 1)
    with pytest.raises(StorageError, match="too big for this bundle"):
        exported(there, *slugs)
    assert_refused(here, data, "it holds more than")
    allow(total)
    assert exported(there, *slugs) == data
    assert import_bundle(here, data).imported == slugs


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("slug", "b" * 12),
        ("state", "running"),
        ("created_at", "yesterday"),
        ("created_at", "2026-01-02T03:04:05"),
        ("created_at", "0001-01-01T00:00:00+23:59"),
        ("title", 5),
        ("title", "x" * 1001),
        ("request", None),
        ("request.context", None),
        ("request.scenario", "other"),
        ("request.max_new_tokens", 10**9),
        ("request.analysis", ["other"]),
        ("request.follow_ups", ["q"] * 9),
        ("request.protect", ["q"] * 13),
        ("request.protect", None),
        ("request.own_indices", None),
        ("request.own_indices.0.variants.0.retained", [1, 1]),
        ("result", None),
        ("result.schema", 2),
        ("result.variants", None),
        ("note", "x" * 10_001),
        ("note", 5),
        ("tags", ["two words"]),
        ("tags", ["t" * 41]),
        ("tags", [f"t{i}" for i in range(21)]),
        ("tags", "good"),
        ("lineage", "abc"),
        ("lineage", {"parent": "../x", "kind": "fork"}),
        ("lineage", {"parent": SLUG, "kind": "other"}),
    ],
)
def test_a_wrong_value_is_refused(here, run, path, value):
    slug = run["slug"]
    *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
    functools.reduce(operator.getitem, above, run)[last] = value
    wrong = sealed(slug, json.dumps(run).encode())
    assert_refused(here, wrong, f"wrong at (its top|.*{last})")


def test_strange_json_is_refused(here, run):
    run["result"]["timings_ms"]["load"] = float("nan")
    assert_refused(here, resealed(run), "it holds NaN")
    for text in (b"[" * 100_000, b"NaN", b"\xff", b"1" * 5000, b"null", b"[]"):
        assert_refused(here, sealed(SLUG, text))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "neither a bundle nor"),
        (b"PK", "not a whole zip"),
        (b"PK\x05\x06" + bytes(18), "no run"),
        (sealed("../../evil00", b"{}"), "called runs/SLUG.json"),
        (b"[" * 100_000, "nested deeper than 32"),
        (b'{"schema": 1, "x": NaN}', "neither a bundle nor"),
        (b"\xff{}", "neither a bundle nor"),
        (b"[]", "an object is expected"),
        (b'{"schema": 2}', "schema"),
    ],
    ids=["empty", "PK", "no entry", "path", "deep", "NaN", "no text", "a list", "schema 2"],
)
def test_what_is_neither_a_bundle_nor_a_result_file_is_refused(here, data, match):
    assert_refused(here, data, match)


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
