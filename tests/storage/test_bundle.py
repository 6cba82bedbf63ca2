"""Bundles: what is exported comes back equal; anything wrong stores nothing."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from ckv_core.errors import StorageError
from ckv_core.request.compare_request import CompareRequest
from storage import bundle_reader, repository
from storage.bundle import FORMAT, VERSION, entry_name, is_same_content, run_json, write_bundle
from storage.bundle_import import ImportReport, import_bundle
from storage.database import Database
from storage.recorder import Recorder
from tests.factories.events import assert_same_result, big_events, folded
from tests.factories.strategies import events
from tests.storage.conftest import load

pytestmark = pytest.mark.slow

REQUEST = CompareRequest(
    context="The long text.", question="What?", answer="This.", protect=("long", "tokens:0-1")
)


def made(database: Database, stream=None, title: str = "") -> str:
    recorder = Recorder(database)
    slug = recorder.create(REQUEST, title)
    recorder.start(slug)
    for event in big_events(tokens=16, variants=2) if stream is None else stream:
        recorder.apply(slug, event)
    recorder.finish(slug)
    return slug


def exported(database: Database, *slugs: str) -> bytes:
    with database.read() as session:
        return write_bundle(session, slugs)


def rewritten(data: bytes, changes: dict[str, bytes | None], extra=()) -> bytes:
    """The same zip with entries replaced, left out (None) or added."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", 8) as new:
        for name in old.namelist():
            content = changes.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in extra:
            new.writestr(name, content)
    return out.getvalue()


def sealed(slug: str, text: bytes, size: int | None = None, **manifest: object) -> bytes:
    """A bundle whose checksums are right for any content; `manifest` changes what it says."""
    digest = hashlib.sha256(text).hexdigest()
    listed = [{"slug": slug, "sha256": digest, "bytes": size or len(text)}]
    manifest = {"format": FORMAT, "version": VERSION, "runs": listed} | manifest
    return zipped({"manifest.json": json.dumps(manifest).encode(), entry_name(slug): text})


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def run_text(data: bytes) -> bytes:
    """The JSON of a bundle's first run."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(archive.namelist()[0])


def run_count(database: Database) -> int:
    with database.read() as session:
        return session.connection().exec_driver_sql("SELECT count(*) FROM runs").scalar()


def assert_refused(database: Database, data: bytes, match: str = "bundle") -> None:
    before = run_count(database)
    with pytest.raises(StorageError, match=match) as caught:
        import_bundle(database, data)
    told = str(caught.value)
    assert "nothing was imported" in told
    assert (told[-1], "\n" in told, len(told) < 300) == (".", False, True), told
    assert run_count(database) == before


@settings(max_examples=settings().max_examples // 3)
@given(stream=events())
def test_an_imported_run_equals_the_exported_one(there, opened, stream):
    slug = made(there, stream)
    data = exported(there, slug)
    assert import_bundle(opened, data).imported == [slug]
    run, original = load(opened, slug), load(there, slug)
    assert is_same_content(run, original)
    assert (run.request, run.state, run.reason) == (REQUEST, original.state, original.reason)
    assert (run.title, run.started_at) == (original.title, original.started_at)
    assert (run.created_at, run.finished_at) == (original.created_at, original.finished_at)
    run.result.environment.pop("imported")
    assert_same_result(run.result, folded(stream))
    assert import_bundle(opened, data) == ImportReport(skipped=[slug])


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
    text = run_text(exported(there, slug))
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
        ("result", None),
        ("result.schema", 2),
        ("result.variants", None),
    ],
)
def test_a_mistyped_value_is_refused_even_with_right_checksums(here, there, path, value):
    slug = made(there)
    run = json.loads(run_text(exported(there, slug)))
    owner, parts = run, path.split(".")
    for part in parts[:-1]:
        owner = owner[part]
    owner[parts[-1]] = value
    wrong = sealed(slug, json.dumps(run).encode())
    assert_refused(here, wrong, f"wrong at (its top|.*{parts[-1]})")


@pytest.mark.parametrize("text", [b"[" * 100_000, b"NaN", b"\xff", b"1" * 5000, b"null", b"[]"])
def test_strange_json_is_refused(here, text):
    assert_refused(here, sealed("a" * 12, text))


def test_a_failure_at_the_last_run_stores_none(here, there, monkeypatch):
    slugs = [made(there), made(there)]
    real, calls = repository.end_run, []

    def failing(*values):
        calls.append(values)
        if len(calls) == 2:
            raise StorageError("The bundle: disk full, nothing was imported.")
        return real(*values)

    monkeypatch.setattr(repository, "end_run", failing)
    assert_refused(here, exported(there, *slugs))
