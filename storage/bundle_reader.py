"""Reads a bundle that may be damaged or hostile: bounded, checked, no path taken from it."""

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NoReturn, cast

from ckv_core.errors import ConfigError, StorageError
from ckv_core.request.compare_request import (
    ANALYSES,
    KINDS,
    MAX_FOLLOW_UPS,
    MAX_NEW_TOKENS,
    MAX_PROTECTED,
    MAX_SWEEP_POINTS,
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    SCENARIOS,
    CompareRequest,
    Kind,
    Scenario,
)
from ckv_core.results.codec import from_json
from ckv_core.results.external_selection_json import own_from_json
from ckv_core.runtime.json_fields import JsonField
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
    manifest = JsonField(BOUNDS.read(text), whole="manifest")
    manifest["format"].one_of(FORMAT)
    if manifest["version"].value != VERSION:
        _refuse("it was made by another version of the app; install that version")
    listed = manifest["runs"].items(MAX_RUNS)
    slugs = [item["slug"].text(SLUG_LENGTH, _SLUG) for item in listed]
    if not slugs or len(set(slugs)) != len(slugs):
        _refuse("its manifest lists no run, or one twice")
    if entries.keys() != {MANIFEST, *map(entry_name, slugs)}:
        _refuse("its files are not those that its manifest lists")
    total = 0
    for slug, item in zip(slugs, listed, strict=True):
        text = _read(archive, entries[entry_name(slug)], MAX_RUN_BYTES)
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            _refuse(f"it holds more than {MAX_TOTAL_BYTES // 2**20} MiB")
        if hashlib.sha256(text).hexdigest() != item["sha256"].text(64):
            _refuse(f"the checksum of run {slug} is wrong")
        yield _bundled(JsonField(BOUNDS.read(text), whole="run"), slug)


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


def _bundled(field: JsonField, slug: str) -> BundledRun:
    tags = field["tags"].maybe(lambda tags: tags.items(TAGS_LIMIT)) or []
    return BundledRun(
        _run(field, slug),
        RunNotes(
            field["note"].maybe(lambda note: note.text(NOTE_LIMIT)) or "",
            tuple(tag.text(64, TAG) for tag in tags),
        ),
        field["lineage"].maybe(_lineage),
    )


def _lineage(field: JsonField) -> Lineage:
    kind = cast("LineageKind", field["kind"].one_of("rerun", "fork"))
    return Lineage(field["parent"].text(SLUG_LENGTH, _SLUG), kind)


def _run(field: JsonField, slug: str) -> StoredRun:
    field["slug"].one_of(slug)
    created_at = _time(field["created_at"])
    return StoredRun(
        slug=slug,
        title=field["title"].text(1000),
        state=cast("RunState", field["state"].one_of(*END_STATES)),
        reason=field["reason"].text(10_000),
        created_at=created_at,
        started_at=field["started_at"].maybe(_time),
        finished_at=field["finished_at"].maybe(_time),
        request=_request(field["request"]),
        result=from_json(field["result"].value),
    )


def _time(field: JsonField) -> datetime:
    text = field.text(40, r"\d{4}-\d\d-\d\dT[\d:.]{5,15}(Z|[+-]\d\d:\d\d)")
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        field.fail("a time with a time zone is expected")


def _request(field: JsonField) -> CompareRequest:
    defaults = field["defaults"].members(64)
    return CompareRequest(
        context=field["context"].text(MAX_TEXT_CHARS),
        question=field["question"].text(MAX_TEXT_CHARS),
        answer=field["answer"].text(MAX_TEXT_CHARS),
        scenario=cast("Scenario", field["scenario"].one_of(*SCENARIOS)),
        model=field["model"].text(500),
        variants=tuple(item.text(1000) for item in field["variants"].items(MAX_SWEEP_POINTS)),
        defaults={key: item.text(200) for key, item in defaults.items()},
        max_new_tokens=field["max_new_tokens"].integer(0, MAX_NEW_TOKENS),
        ignore_eos=field["ignore_eos"].boolean(),
        device=field["device"].one_of("auto", "cpu", "cuda"),
        dtype=field["dtype"].one_of("auto", "float32", "bfloat16", "float16"),
        kind=cast("Kind", field["kind"].one_of(*KINDS)),
        analysis=tuple(item.one_of(*ANALYSES) for item in field["analysis"].items(len(ANALYSES))),
        follow_ups=tuple(
            item.text(MAX_TEXT_CHARS) for item in field["follow_ups"].items(MAX_FOLLOW_UPS)
        ),
        protect=tuple(item.text(MAX_TEXT_CHARS) for item in field["protect"].items(MAX_PROTECTED)),
        own_indices=own_from_json(field["own_indices"].items(MAX_VARIANTS)),
    )


def _refuse(reason: str) -> NoReturn:
    raise StorageError(f"The bundle was refused, nothing was imported: {reason}.")
