"""Reads a file to import, which may be damaged or hostile: bounded, and no path is taken from it.

A bundle is a zip as storage/bundle.py writes it; a file of results has one or one a line. A large
file is read in a process of its own.
"""

import base64
import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NoReturn, cast

from ckv_core.base.checked import read, wrong
from ckv_core.base.json_text import JsonBounds, NoJsonError
from ckv_core.base.read_apart import SMALL_BYTES, Data, TooMuchError, read_apart
from ckv_core.errors import ConfigError, StorageError
from ckv_core.records.codec import from_json
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import MAX_TEXT_CHARS
from ckv_core.records.grid import at_points
from ckv_core.records.run_request import RunRequest
from storage.bundle import MAX_RUN_BYTES, MAX_RUNS, MAX_TOTAL_BYTES, BundledRun
from storage.models import END_STATES, SLUG_LENGTH
from storage.recorder import first_words
from storage.records import SLUG, Lineage, RunNotes, StoredRun

UNFINISHED = "The imported file holds a run that did not end."
MAX_RATIO = 250  # of one entry; repeated position lists reach about 30
# The largest run that can be exported has 10 million positions in half a million rows.
BOUNDS = JsonBounds(containers=2**20, values=2**24)
ZIP_SIGN = b"PK"
_NAME = re.compile(rf"runs/({SLUG})\.json", re.ASCII)
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


@contextmanager
def reading(data: bytes) -> Iterator[Iterable[BundledRun]]:
    """The runs of a hostile zip, JSON text, or JSON a line, all checked; to be gone through once.

    Of a large file one run at a time is in memory. StorageError if it is wrong, or takes too much.
    """
    if _is_small(data):
        yield list(runs_of(data))
        return
    try:
        with read_apart(runs_of, data) as runs:
            yield runs
    except TooMuchError as error:
        _refuse(str(error)[0].lower() + str(error)[1:-1])
    except OSError as error:
        _refuse(f"the server cannot keep it for reading ({error.strerror})")


def runs_of(data: Data) -> Iterator[BundledRun]:
    """The runs of a file, one by one; raises as `reading`."""
    data = data.encode() if isinstance(data, str) else data
    try:
        if not data.startswith(ZIP_SIGN):
            yield from _read_results(data)
            return
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from _read_archive(archive)
    except NoJsonError as error:
        _refuse(f"a file in it is not valid JSON ({error})")
    except ConfigError as error:
        _refuse(str(error).rstrip("."))
    except _ZIP_ERRORS:
        _refuse("it is not a whole zip file")


def _is_small(data: bytes) -> bool:
    """Whether it has at most SMALL_BYTES, packed and unpacked."""
    if len(data) > SMALL_BYTES:
        return False
    if not data.startswith(ZIP_SIGN):
        return True
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # No more than that is unpacked, whatever there is.
            return sum(entry.file_size for entry in archive.infolist()) <= SMALL_BYTES
    except Exception:
        return True  # the reader knows what is wrong with it


def _refuse(reason: str) -> NoReturn:
    raise StorageError(f"The file was refused, nothing was imported: {reason}.")


# --- bundles ----------------------------------------------------------------------------


def _read_archive(archive: zipfile.ZipFile) -> Iterator[BundledRun]:
    # Bundles of before the first release have a list of their runs too.
    entries, total = [each for each in archive.infolist() if each.filename != "manifest.json"], 0
    if not 1 <= len(entries) <= MAX_RUNS or len({each.filename for each in entries}) < len(entries):
        _refuse(f"it has no run, a name twice, or more than {MAX_RUNS:,} runs")
    for entry in entries:
        if (named := _NAME.fullmatch(entry.filename)) is None:
            _refuse("a file in it is no run, which is called runs/SLUG.json")
        text = _read(archive, entry)
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            _refuse(f"it holds more than {MAX_TOTAL_BYTES // 2**20} MiB")
        yield _bundled(BOUNDS.read(text), named[1])


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """One entry, never more of it than one run may have, whatever its header declares."""
    if entry.flag_bits & _ENCRYPTED:
        _refuse("it is encrypted")
    if stat.S_ISLNK(entry.external_attr >> 16):
        _refuse("a file in it is a link")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _refuse("it is compressed in an unusual way")
    if entry.file_size > MAX_RUN_BYTES:
        _refuse(f"a file in it is over {MAX_RUN_BYTES // 2**20} MiB")
    if entry.file_size > MAX_RATIO * max(entry.compress_size, 4096):
        _refuse("it is compressed too much to be a bundle")
    with archive.open(entry) as file:
        text = file.read(MAX_RUN_BYTES + 1)
    if len(text) != entry.file_size:
        _refuse("a file in it is not as long as it declares")
    return text


def _bundled(document: object, slug: str) -> BundledRun:
    run = read(StoredRun, document, "run")
    if run.slug != slug:
        raise wrong("run", ("slug",), f"{slug} is expected", run.slug)
    if run.state not in END_STATES:
        raise wrong("run", ("state",), f"one of {', '.join(END_STATES)} is expected", run.state)
    _check_variants(run.result)
    lineage = cast("dict[str, Any]", document).get("lineage")
    return BundledRun(
        replace(run, owner=None),
        read(RunNotes, document, "run"),
        None if lineage is None else read(Lineage, lineage, "run", at=("lineage",)),
    )


def _check_variants(result: RunResult) -> None:
    if len({variant.spec for variant in result.variants}) < len(result.variants):
        raise ConfigError("Two of its variants have the same SPEC.")


# --- files of results -------------------------------------------------------------------


def _read_results(data: bytes) -> Iterator[BundledRun]:
    """The run of a result file, or those of one with a result a line."""
    found = enumerate(re.finditer(rb"^.*$", data, re.MULTILINE), 1)
    filled = ((number, match[0]) for number, match in found if match[0].strip())
    lines = [*islice(filled, MAX_RUNS + 1)]
    if len(lines) < 2 or not lines[0][1].rstrip().endswith(b"}"):  # one document, maybe indented
        yield _read_result(data)
        return
    if len(lines) > MAX_RUNS:
        _refuse(f"it has more than {MAX_RUNS:,} results")
    if len(data) > MAX_TOTAL_BYTES:
        _refuse(f"it holds more than {MAX_TOTAL_BYTES // 2**20} MiB")
    for number, line in lines:
        yield _read_result(line.strip(), f"line {number}: ")


def _read_result(data: bytes, where: str = "") -> BundledRun:
    """The run of one result, which has the same slug each time.

    The result does not have the question and the settings as typed: the context is read from the
    tokens' texts.
    """
    if len(data) > MAX_RUN_BYTES:
        _refuse(f"{where}a result takes up to {MAX_RUN_BYTES // 2**20} MiB")
    try:
        result = from_json(BOUNDS.read(data))
        _check_variants(result)
    except NoJsonError as error:
        _refuse(f"{where}it is neither a bundle nor a result JSON ({error})")
    except ConfigError as error:
        _refuse(where + str(error).rstrip("."))
    if result.model is None or result.prompt is None:
        _refuse(f"{where}it has no model and prompt, so there is nothing to show")
    begin, end = result.prompt.context_tokens
    request = RunRequest(
        context="".join(result.prompt.pieces[begin:end]),
        scenario=result.prompt.scenario,
        model=result.model.name,
        variants=tuple(variant.spec for variant in result.variants),
        max_new_tokens=max((len(variant.token_ids) for variant in result.variants), default=0),
    )
    if result.kind == "sweep":
        request = at_points(request, request.variants)
    if len(request.context) > MAX_TEXT_CHARS:
        _refuse(f"{where}its text has over {MAX_TEXT_CHARS:,} characters")
    run = StoredRun(
        slug=base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:SLUG_LENGTH],
        title=first_words(request.context) or "Imported result",
        state="done" if result.finished else "failed",
        reason="" if result.finished else UNFINISHED,
        created_at=datetime.now(UTC),
        request=request,
        result=result,
    )
    return BundledRun(run, has_times=False)
