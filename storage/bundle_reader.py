"""Reads a bundle that may be damaged or hostile: bounded, checked, no path taken from it."""

import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn, cast

from ckv_core.errors import ConfigError, StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.codec import from_json
from ckv_core.runtime.checked import By, Plain, chars, many, one_of, read, require, wrong
from ckv_core.runtime.json_text import JsonBounds, NoJsonError
from storage.bundle import (
    FORMAT,
    MANIFEST,
    MAX_RUN_BYTES,
    MAX_RUNS,
    MAX_TOTAL_BYTES,
    VERSION,
    BundledRun,
    entry_name,
)
from storage.library import NOTE_LIMIT, TAG, TAGS_LIMIT
from storage.models import END_STATES, SLUG_LENGTH
from storage.records import Lineage, LineageKind, RunNotes, RunState, StoredRun

MAX_RATIO = 250  # of one entry; repeated position lists reach about 30
MAX_MANIFEST_BYTES = 2**20
# The largest run that can be exported has 10 million positions in half a million rows.
BOUNDS = JsonBounds(containers=2**20, values=2**24)
_SLUG = f"[a-z0-9]{{{SLUG_LENGTH}}}"
_ENCRYPTED = 0x1
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


Slug = Annotated[str, chars(SLUG_LENGTH, _SLUG)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    slug: Slug
    sha256: Annotated[str, chars(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    format: Annotated[str, one_of(FORMAT)]
    version: object
    runs: Annotated[tuple[_Entry, ...], many(MAX_RUNS)]


def _read_time(value: Any, _: Plain) -> datetime:
    form = r"\d{4}-\d\d-\d\dT[\d:.]{5,15}(Z|[+-]\d\d:\d\d)"
    is_time = isinstance(value, str) and re.fullmatch(form, value, re.ASCII)
    require(is_time, "a time with a time zone is expected")
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except OverflowError as error:
        raise ValueError from error  # as of a month that does not exist


Time = Annotated[datetime, By(_read_time)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lineage:
    parent: Slug
    kind: LineageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    slug: str
    title: Annotated[str, chars(1000)]
    state: Annotated[str, one_of(*END_STATES)]
    reason: Annotated[str, chars(10_000)]
    created_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None
    request: CompareRequest
    result: object
    note: Annotated[str, chars(NOTE_LIMIT)] | None = None
    tags: Annotated[tuple[Annotated[str, chars(64, TAG)], ...], many(TAGS_LIMIT)] | None = None
    lineage: _Lineage | None = None


def read_bundle(data: bytes) -> Iterator[BundledRun]:
    """All runs of a bundle, one by one; nothing is stored.

    Raises:
        StorageError: it is no bundle, damaged, too big, of a newer version, or a value in it is
            wrong; one sentence says what.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from _read_archive(archive)
    except StorageError:
        raise
    except NoJsonError as error:
        _refuse(f"a file in it is not valid JSON ({error})")
    except ConfigError as error:
        _refuse(str(error).rstrip("."))
    except _ZIP_ERRORS:
        _refuse("it is not a whole zip file")


def _read_archive(archive: zipfile.ZipFile) -> Iterator[BundledRun]:
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(archive.infolist()) != len(entries) or len(entries) > MAX_RUNS + 1:
        _refuse(f"it has a name twice, or more than {MAX_RUNS} runs")
    if MANIFEST not in entries:
        _refuse("it has no manifest.json; export the runs as a bundle first")
    text = _read(archive, entries[MANIFEST], MAX_MANIFEST_BYTES)
    manifest = read(_Manifest, BOUNDS.read(text), "manifest")
    if manifest.version != VERSION:
        _refuse("it was made by another version of the app; install that version")
    listed = {run.slug: run.sha256 for run in manifest.runs}
    if not listed or len(listed) < len(manifest.runs):
        _refuse("its manifest lists no run, or one twice")
    if entries.keys() != {MANIFEST, *map(entry_name, listed)}:
        _refuse("its files are not those that its manifest lists")
    total = 0
    for slug, checksum in listed.items():
        text = _read(archive, entries[entry_name(slug)], MAX_RUN_BYTES)
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            _refuse(f"it holds more than {MAX_TOTAL_BYTES // 2**20} MiB")
        if hashlib.sha256(text).hexdigest() != checksum:
            _refuse(f"the checksum of run {slug} is wrong")
        yield _bundled(BOUNDS.read(text), slug)


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """One entry, never more than `most` bytes of it, whatever its header says."""
    if entry.flag_bits & _ENCRYPTED:
        _refuse("it is encrypted")
    if stat.S_ISLNK(entry.external_attr >> 16):
        _refuse("a file in it is a link")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _refuse("it is compressed in an unusual way")
    if entry.file_size > most:
        _refuse(f"a file in it is over {most // 2**20} MiB")
    if entry.file_size > MAX_RATIO * max(entry.compress_size, 4096):
        _refuse("it is compressed too much to be a bundle")
    with archive.open(entry) as file:
        text = file.read(most + 1)
    if len(text) != entry.file_size:
        _refuse("a file in it is not as long as it says")
    return text


def _bundled(document: object, slug: str) -> BundledRun:
    run = read(_Run, document, "run")
    if run.slug != slug:
        raise wrong("run", ("slug",), f"{slug} is expected", run.slug)
    return BundledRun(
        StoredRun(
            slug=slug,
            title=run.title,
            state=cast("RunState", run.state),
            reason=run.reason,
            created_at=run.created_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
            request=run.request,
            result=from_json(run.result),
        ),
        RunNotes(run.note or "", run.tags or ()),
        None if run.lineage is None else Lineage(run.lineage.parent, run.lineage.kind),
    )


def _refuse(reason: str) -> NoReturn:
    raise StorageError(f"The bundle was refused, nothing was imported: {reason}.")
