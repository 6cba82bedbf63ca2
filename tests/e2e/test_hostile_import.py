"""Hostile files given to the Runs page: one sentence each, nothing stored, the app goes on."""

import json
import stat
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from storage.bundle import FORMAT, MAX_RUNS, VERSION, entry_name
from storage.database import default_url, open_database
from tests.e2e.test_xss import HOSTILE, PAYLOADS, assert_nothing_ran
from tests.storage.test_bundle import exported, made, rewritten, run_text, sealed, zipped
from tests.ui.served_app import Served, served
from ui.limits import Limits
from ui.runs.routes import IMPORT_TYPE

BODY_MIB = 2
NOBODY = "a" * 12
SHOWN = ("bomb", "page not zip", "over the limit")
Files = dict[str, tuple[bytes, str]]


def bundle_of_one(folder: Path) -> tuple[str, bytes]:
    """A run's slug and a bundle of it, made elsewhere."""
    with closing(open_database(default_url(folder))) as database:
        slug = made(database)
        return slug, exported(database, slug)


def linked(slug: str, text: bytes) -> bytes:
    """The bundle of a run that is a symbolic link for whoever unpacks it."""
    out = BytesIO()
    with (
        zipfile.ZipFile(BytesIO(sealed(slug, text))) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            if entry.filename == entry_name(slug):
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            new.writestr(entry, old.read(entry.filename))
    return out.getvalue()


def with_a_repeated_name(data: bytes, name: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return rewritten(data, {}, [(name, b"{}")])


def with_a_length_that_lies(slug: str) -> bytes:
    """Its directory says 500 bytes of what unfolds to 5,000."""
    data = bytearray(sealed(slug, b"x" * 5000))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 500)
    return bytes(data)


def changed(slug: str, text: bytes, **values: Any) -> bytes:
    """A bundle with right checksums of a run with other values."""
    return sealed(slug, json.dumps(json.loads(text) | values).encode())


def hostile_files(folder: Path) -> Files:
    """By name: the file, and what the page must say of it."""
    slug, data = bundle_of_one(folder)
    text, name = run_text(data), entry_name(slug)
    result = json.loads(text)["result"]
    wide = result | {"model": result["model"] | {"layers": 10**9}}
    crowd = [{"slug": f"{number:012}"} for number in range(MAX_RUNS + 1)]
    strange = "its files are not those that its manifest lists"
    listed = {"slug": slug, "sha256": "0" * 64, "bytes": len(text)}
    lzma = BytesIO()
    with zipfile.ZipFile(lzma, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("manifest.json", b"{}")
    return {
        "bomb": (sealed(NOBODY, b" " * 20_000_000), "it is compressed too much to be a bundle"),
        "bomb in the manifest": (
            zipped({"manifest.json": b" " * 20_000_000}),
            "a file in it is over 1 MiB",
        ),
        "length that lies": (with_a_length_that_lies(NOBODY), "it is not a whole zip file"),
        "path upwards": (rewritten(data, {}, [("../../outside-it", b"x")]), strange),
        "absolute path": (rewritten(data, {}, [("/tmp/outside-it", b"x")]), strange),
        "path of Windows": (rewritten(data, {}, [("C:\\outside-it", b"x")]), strange),
        "path in the manifest": (
            sealed("../../outside-it0", b"{}"),
            "The manifest is wrong at runs[0].slug",
        ),
        "link to a file": (linked(slug, b"/etc/passwd"), "a file in it is a link"),
        "link around a run": (linked(slug, text), "a file in it is a link"),
        "run twice": (with_a_repeated_name(data, name), "it has a name twice"),
        "manifest twice": (with_a_repeated_name(data, "manifest.json"), "it has a name twice"),
        "run listed twice": (
            sealed(slug, text, runs=[listed, listed]),
            "its manifest lists no run, or one twice",
        ),
        "many entries": (
            zipped({f"runs/{number}": b"" for number in range(12_000)}),
            "more than 1000 runs",
        ),
        "many runs listed": (sealed(NOBODY, b"{}", runs=crowd), "at most 1000 values"),
        "many layers": (json.dumps(wide).encode(), "wrong at model.layers"),
        "many variants": (
            changed(slug, text, result=result | {"variants": [result["variants"][0]] * 300}),
            "at most 16 values are allowed, got 300",
        ),
        "long text": (changed(slug, text, title="x" * 1001), "The run is wrong at title"),
        "text not zip": (b"not a zip", "it is neither a bundle nor a result JSON"),
        "nothing": (b"", "it is neither a bundle nor a result JSON"),
        "page not zip": (HOSTILE.encode(), "it is neither a bundle nor a result JSON"),
        "sign of a zip alone": (b"PK\x03\x04" + bytes(400), "it is not a whole zip file"),
        "half a zip": (data[: len(data) // 2], "it is not a whole zip file"),
        "all but the last byte": (data[:-1], "it is not a whole zip file"),
        "zip in a zip": (rewritten(data, {}, [("inner.zip", data)]), strange),
        "zip as a run": (sealed(slug, data), "a file in it is not valid JSON"),
        "zip of a zip": (zipped({"bundle.zip": data}), "it has no manifest.json"),
        "checksum that lies": (
            sealed(slug, text, runs=[listed]),
            f"the checksum of run {slug} is wrong",
        ),
        "checksum of another kind": (
            sealed(slug, text, runs=[listed | {"sha256": ["x"]}]),
            "The manifest is wrong at runs[0].sha256",
        ),
        "run under another name": (sealed(NOBODY, text), "The run is wrong at slug"),
        "another compression": (lzma.getvalue(), "it is compressed in an unusual way"),
        "newer version": (sealed(slug, text, version=VERSION + 1), "another version of the app"),
        "another format": (
            sealed(slug, text, format=f"{FORMAT}<b>"),
            "The manifest is wrong at format",
        ),
        "deep JSON": (sealed(slug, b"[" * 100_000), "nested deeper than 32 levels"),
        "markup as a tag": (changed(slug, text, tags=["<b>"]), "wrong at tags[0]"),
        "markup as a state": (changed(slug, text, state=PAYLOADS[0]), "wrong at state"),
        "over the limit": (b"PK" + bytes(BODY_MIB * 2**20), f"takes {BODY_MIB} MiB at a time"),
    }


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = Limits(body_mib=BODY_MIB)
    with served(tmp_path_factory.mktemp("app"), with_logins=False, limits=limits) as app:
        yield app


@pytest.fixture
def page(browser: Browser, app: Served) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 430, "height": 900})
    page = context.new_page()
    page.goto(f"{app.url}/runs")
    expect(page.locator("#runs")).to_contain_text("No runs yet")
    yield page
    context.close()


def give(page: Page, name: str, data: bytes) -> None:
    """Choose a file on the page."""
    page.locator("#runs .ckv-files [role=status]").evaluate("line => { line.textContent = '' }")
    page.locator("#runs input[data-import]").set_input_files(
        {"name": name, "mimeType": "application/zip", "buffer": data}
    )


def test_a_hostile_file_is_one_sentence_and_stores_nothing(
    page: Page, app: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = hostile_files(tmp_path_factory.mktemp("there"))
    told = page.locator("#runs .ckv-files [role=status]")
    for name in SHOWN:
        data, sentence = files[name]
        give(page, f"{name}.zip", data)
        expect(told, name).to_contain_text(sentence)
        expect(told, name).to_have_attribute("data-tone", "error")
    del files["over the limit"]  # the server's own sentence is of any request
    with app.client() as client:
        for name, (data, sentence) in files.items():
            answer = client.post(
                "/runs/import", content=data, headers={"content-type": IMPORT_TYPE}
            )
            text = answer.json()["told"]
            assert sentence in text, name
            assert "nothing was imported" in text, name
            assert (text[-1], "\n" in text, len(text) < 300) == (".", False, True), (name, text)
            assert app.services.count_by_state() == {}, name
        assert client.get("/readyz").status_code == 200
    expect(page.get_by_role("button", name="Import runs")).to_be_enabled()
    assert_nothing_ran(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 430
    assert list(tmp_path_factory.getbasetemp().rglob("*outside-it*")) == []


def test_markup_in_a_bundles_texts_is_shown_as_text_after_all_that(
    page: Page, app: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The app takes what is right after all that was wrong; markup in a title is only a text."""
    slug, data = bundle_of_one(tmp_path_factory.mktemp("there"))
    title = HOSTILE[:300]
    give(page, f"{PAYLOADS[0]}.zip", changed(slug, run_text(data), title=title, note=HOSTILE))
    expect(page.locator("#runs .ckv-files")).to_contain_text("Imported 1 of 1 run.")
    row = page.locator("#runs tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("a").first).to_have_text(title)
    expect(row).to_contain_text(PAYLOADS[-1])
    assert_nothing_ran(page)
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.locator("#run-title")).to_contain_text(PAYLOADS[0])
    assert_nothing_ran(page)
