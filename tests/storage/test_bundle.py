"""Bundles: what is exported comes back equal; anything wrong stores nothing."""

import functools
import hashlib
import io
import json
import operator
import os
import zipfile
from pathlib import Path

import pytest

from ckv_core.errors import StorageError
from storage import bundle_reader
from storage.bundle import FORMAT, MAX_RUNS, VERSION, entry_name, is_same_content, run_json
from storage.bundle_import import import_bundle
from storage.bundle_reader import MAX_MANIFEST_BYTES
from storage.recorder import Recorder
from tests.storage.bundles import (
    REQUEST,
    assert_refused,
    exported,
    made,
    resealed,
    rewritten,
    run_values,
    sealed,
    zipped,
)
from tests.storage.conftest import load

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)]


def test_an_imported_run_says_that_it_was_imported(here, there):
    slug = made(there)
    import_bundle(here, exported(there, slug))
    assert load(here, slug).result.environment["imported"].endswith("from a bundle")


def test_a_taken_slug_with_other_content_gets_a_new_one(here, there):
    slugs = [made(there), made(there)]
    data = exported(there, *slugs)
    import_bundle(here, data)
    with here.write() as session:
        session.connection().exec_driver_sql(
            "DELETE FROM arrays WHERE name = 'token_texts' AND variant_id IN (SELECT variants.id "
            f"FROM variants JOIN runs ON runs.id = run_id WHERE slug = '{slugs[0]}')"
        )
    report = import_bundle(here, data)
    assert report.skipped == [slugs[1]]
    assert report.imported == [report.renamed[slugs[0]]]
    assert is_same_content(load(here, report.imported[0]), load(there, slugs[0]))
    assert slugs[0] in report.sentence


def test_the_same_runs_give_the_same_bytes(there):
    assert exported(there, slug := made(there)) == exported(there, slug, slug)
    assert "readings" not in run_json(load(there, slug))["result"]


def test_a_run_that_is_not_over_or_not_there_is_not_exported(there):
    slug = Recorder(there).create(REQUEST)
    with pytest.raises(StorageError, match="not over"):
        exported(there, slug)
    with pytest.raises(StorageError, match="no run"):
        exported(there, "a" * 12)
    with pytest.raises(StorageError, match="1 to 1000"):
        exported(there)


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
    ],
)
def test_a_path_in_a_bundle_is_refused(here, there, tmp_path, name):
    data = exported(there, made(there))
    before = set(Path(tmp_path).rglob("*"))
    assert_refused(here, rewritten(data, {}, [(name, b"{}")]))
    assert_refused(here, sealed("../../evil00", b"{}"))
    assert {path for path in tmp_path.rglob("*") if "evil" in path.name} == set()
    assert before <= set(tmp_path.rglob("*"))


def test_zip_bombs_are_refused_before_they_unfold(here, monkeypatch):
    bomb = sealed("a" * 12, b" " * 3_000_000)
    assert_refused(here, bomb, "compressed too much")
    monkeypatch.setattr(bundle_reader, "MAX_RUN_BYTES", 1000)
    assert_refused(here, sealed("a" * 12, bytes(range(256)) * 8), "over 0 MiB")
    # A header that lies about the size.
    data = bytearray(sealed("a" * 12, b"x" * 5000))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = (500).to_bytes(4, "little")
    assert_refused(here, bytes(data))


def test_missing_extra_and_repeated_entries_are_refused(here, there):
    slug = made(there)
    data = exported(there, slug)
    assert_refused(here, rewritten(data, {"manifest.json": None}), "no manifest")
    assert_refused(here, rewritten(data, {entry_name(slug): None}), "not those")
    assert_refused(here, rewritten(data, {}, [("more", b"")]), "not those")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = rewritten(data, {}, [(entry_name(slug), b"{}")])
    assert_refused(here, twice, "twice")
    assert_refused(here, zipped({f"runs/{at}": b"" for at in range(1_100)}), "more than 1000 runs")


def test_entries_in_another_order_are_read(here, there):
    slug = made(there)
    with zipfile.ZipFile(io.BytesIO(exported(there, slug))) as archive:
        names = archive.namelist()
        assert names[-1] == "manifest.json"
        first = rewritten(
            exported(there, slug),
            {"manifest.json": None},
            [("manifest.json", archive.read("manifest.json"))],
        )
        moved = rewritten(
            exported(there, slug),
            {names[0]: None},
            [(names[0], archive.read(names[0]))],
        )
    assert import_bundle(here, moved).imported == [slug]
    assert import_bundle(here, first).skipped == [slug]


def test_a_changed_run_fails_its_checksum(here, there):
    slug = made(there)
    assert_refused(here, rewritten(exported(there, slug), {entry_name(slug): b"{}"}), "checksum")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "another-bundle"}, "manifest|format"),
        ({"format": None}, "format"),
        ({"version": VERSION + 1}, "another version of the app"),
        ({"version": None}, "another version of the app"),
    ],
)
def test_another_format_or_version_is_refused(here, there, changes, match):
    slug = made(there)
    text = json.dumps(run_values(exported(there, slug))).encode()
    assert_refused(here, sealed(slug, text, **changes), match)
    assert import_bundle(here, sealed(slug, text)).imported == [slug]


@pytest.mark.parametrize("manifest", [{"name": "An add-on", "version": 1}, ["x"], "x", None])
def test_a_zip_of_something_else_with_a_manifest_is_refused(here, manifest):
    files = {"manifest.json": json.dumps(manifest).encode(), "main.js": b"alert(1)"}
    assert_refused(here, zipped(files), "wrong at")


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_bundle_is_refused(here, data):
    assert_refused(here, data)


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
        ("request.own_indices.0.variants.0.retained", [1, 1]),
        ("result", None),
        ("result.schema", 2),
        ("result.variants", None),
    ],
)
def test_a_mistyped_value_is_refused_even_with_right_checksums(here, there, path, value):
    slug = made(there)
    run = run_values(exported(there, slug))
    *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
    functools.reduce(operator.getitem, above, run)[last] = value
    wrong = sealed(slug, json.dumps(run).encode())
    assert_refused(here, wrong, f"wrong at (its top|.*{last})")


@pytest.mark.parametrize("text", [b"[" * 100_000, b"NaN", b"\xff", b"1" * 5000, b"null", b"[]"])
def test_strange_json_is_refused(here, text):
    assert_refused(here, sealed("a" * 12, text))


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
    text = json.dumps(run_values(exported(there, slug))).encode()
    entry = {"slug": slug, "sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    assert_refused(here, sealed(slug, text, runs=[entry, entry]), "lists no run, or one twice")


def test_a_figure_that_is_not_finite_is_refused_as_such(here, there):
    run = run_values(exported(there, made(there)))
    run["result"]["timings_ms"]["load"] = float("nan")
    assert_refused(here, resealed(run), "a number that is not finite")


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
