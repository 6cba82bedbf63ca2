"""Reads a file of results, which may be damaged or hostile, as runs to be stored."""

import base64
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from ckv_core.errors import ConfigError, StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.external_selection import MAX_TEXT_CHARS
from ckv_core.results.codec import from_json
from ckv_core.results.events import RunResult
from ckv_core.runtime.json_text import NoJsonError
from storage.bundle import MAX_RUN_BYTES, MAX_RUNS, MAX_TOTAL_BYTES, BundledRun
from storage.bundle_reader import BOUNDS
from storage.models import SLUG_LENGTH
from storage.recorder import first_words
from storage.records import StoredRun

UNFINISHED = "The imported file holds a run that did not end."


def read_results(data: bytes) -> Iterator[BundledRun]:
    """The run of a result file, or those of one with a result a line; nothing is stored.

    The same result gives the same slug, so that importing it twice is noticed. The file does not
    tell the question and the settings as typed: the context is read from the tokens' texts.

    Raises:
        StorageError: it is no result, too big, without a prompt, or a value in it is wrong.
    """
    found = enumerate(re.finditer(rb"^.*$", data, re.MULTILINE), 1)
    filled = ((number, match[0]) for number, match in found if match[0].strip())
    lines = [*islice(filled, MAX_RUNS + 1)]
    if len(lines) < 2 or not lines[0][1].rstrip().endswith(b"}"):  # one document, maybe indented
        yield _read_result(data)
        return
    if len(lines) > MAX_RUNS:
        raise _refused(f"it has more than {MAX_RUNS:,} results")
    if len(data) > MAX_TOTAL_BYTES:
        raise _refused(f"it holds more than {MAX_TOTAL_BYTES // 2**20} MiB")
    for number, line in lines:
        yield _read_result(line.strip(), f"line {number}: ")


def _read_result(data: bytes, where: str = "") -> BundledRun:
    if len(data) > MAX_RUN_BYTES:
        raise _refused(f"{where}a result takes up to {MAX_RUN_BYTES // 2**20} MiB")
    try:
        result = from_json(BOUNDS.read(data))
    except NoJsonError as error:
        raise _refused(f"{where}it is neither a bundle nor a result JSON ({error})") from None
    except ConfigError as error:
        raise _refused(where + str(error).rstrip(".")) from None
    if result.model is None or result.prompt is None:
        raise _refused(f"{where}it has no model and prompt, so there is nothing to show")
    request = _request(result)
    if len(request.context) > MAX_TEXT_CHARS:
        raise _refused(f"{where}its text has over {MAX_TEXT_CHARS:,} characters")
    run = StoredRun(
        slug=base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:SLUG_LENGTH],
        title=first_words(request.context) or "Imported result",
        state="done" if result.finished else "failed",
        reason="" if result.finished else UNFINISHED,
        created_at=datetime.now(UTC),
        started_at=None,
        finished_at=None,
        request=request,
        result=result,
    )
    return BundledRun(run, has_times=False)


def _request(result: RunResult) -> CompareRequest:
    if result.model is None or result.prompt is None:
        raise AssertionError("checked by the caller")
    begin, end = result.prompt.context_tokens
    most = max((len(variant.token_ids) for variant in result.variants), default=0)
    return CompareRequest(
        context="".join(result.prompt.pieces[begin:end]),
        scenario=result.prompt.scenario,
        model=result.model.name,
        variants=tuple(variant.spec for variant in result.variants),
        max_new_tokens=most,
        kind=result.kind,
    )


def _refused(reason: str) -> StorageError:
    return StorageError(f"The file was refused, nothing was imported: {reason}.")
