"""Bundles and result files: what is written, what travels beside a run, what an import makes."""

import functools
import io
import json
import operator
import zipfile
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckv_core.errors import StorageError
from ckv_core.records.codec import to_json
from storage import bundle, library
from storage.bundle import (
    MAX_RUNS,
    UNFINISHED,
    ImportReport,
    entry_name,
    import_bundle,
    write_bundle,
)
from storage.recorder import Recorder
from storage.records import RunFilter
from tests.factories.events import assert_same_result, big_events
from tests.storage.bundles import (
    REQUEST,
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
from tests.storage.conftest import load

# --- bundles that are damaged, lie or are too big: one sentence, and nothing is stored -----

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)]


def annotated(database) -> str:
    slug = made(database)
    database.write_with(library.annotate, slug, "A title", "My <b>note</b>")
    return slug


def listed(database, slug: str, owner: str = ""):
    runs, _ = database.read_with(library.list_runs, RunFilter(owner=owner))
    return next(run for run in runs if run.slug == slug)


def result_file(database, slug: str, **changes) -> bytes:
    return json.dumps(to_json(load(database, slug).result) | changes).encode()


def test_the_same_runs_give_the_same_bytes(there):
    assert exported(there, slug := made(there)) == exported(there, slug, slug)


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


def test_a_run_of_somebody_else_gets_a_new_slug_and_ones_own_is_there_already(here, there):
    slugs = [made(there), made(there)]
    data = exported(there, *slugs)
    import_bundle(here, data, "ann")
    report = import_bundle(here, data, "bob")
    assert (report.skipped, list(report.renamed)) == ([], slugs)
    assert report.imported == [*report.renamed.values()]
    assert slugs[0] in report.sentence
    assert import_bundle(here, data, "ann") == ImportReport(skipped=slugs)


def test_a_run_that_was_deleted_here_is_imported_under_a_new_slug(here, there):
    data = exported(there, slug := made(there))
    import_bundle(here, data)
    here.write_with(library.delete_runs, [slug], datetime.now(UTC))
    report = import_bundle(here, data)
    assert report.skipped == []
    assert report.imported == [report.renamed[slug]]
    assert load(here, report.imported[0]).request == load(there, slug).request


def test_title_and_note_travel_where_they_may(here, there):
    slug = annotated(there)
    values = run_values(there.read_with(write_bundle, [slug], without_notes={slug}))
    assert "note" not in json.dumps(values)
    (bare,) = import_bundle(here, resealed({**values, "slug": "b" * 12})).imported
    assert listed(here, bare).note == ""
    import_bundle(here, exported(there, slug))
    run = listed(here, slug)
    assert (run.title, run.note) == ("A title", "My <b>note</b>")
    assert here.read_with(library.list_runs, RunFilter(text="note"))[1] == 1


def test_what_is_known_of_a_model_alone_is_no_result(here, there):
    values = run_values(exported(there, made(there)))
    result = {**values["result"], "prompt": None, "variants": [], "finished": False}
    (slug,) = import_bundle(here, resealed({**values, "result": result})).imported
    assert (load(here, slug).result.model, load(here, slug).result.prompt) == (None, None)


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


def test_a_zip_bomb_is_refused_before_it_unfolds(here, monkeypatch):
    monkeypatch.setattr(bundle, "MAX_RUN_BYTES", 1000)
    assert_refused(here, sealed(SLUG, bytes(range(256)) * 8), "over 0 MiB")


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (6, b"\x63\x00", "not a whole zip"),  # made for a newer unzip
        (8, b"\x20\x00", "not a whole zip"),  # a patch of another file
        (8, b"\x01\x00", "not a whole zip"),  # encrypted
        (10, b"\x5d\x00", "not a whole zip"),  # compressed in an unusual way
        (16, b"\x00\x00\x00\x00", "not a whole zip"),  # another sum of its bytes
        (24, b"\x89\x13\x00\x00", "not as long as it declares"),
        (24, b"\x87\x13\x00\x00", "not a whole zip"),
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
        for module in ("storage.bundle", "storage.bundle"):
            monkeypatch.setattr(f"{module}.MAX_TOTAL_BYTES", most)

    allow(total - 1)
    with pytest.raises(StorageError, match=r"bundle\. One run takes up to 64 MiB"):
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
