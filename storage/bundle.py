"""Runs as one file to take along: writes a zip with one JSON for each run.

storage/bundle_import.py reads and stores it; docs/how-to/share.md describes it.
"""

import io
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.records.codec import record_json, to_json
from ckv_core.records.external_selection import own_to_json
from storage import repository
from storage.models import END_STATES
from storage.records import RunNotes, StoredRun

MAX_RUNS = 1000
MAX_RUN_BYTES = 64 * 2**20  # of one run's JSON
MAX_TOTAL_BYTES = 512 * 2**20
IMPORTED = "imported"  # key in the environment of a run that was not made here
FROM_RESULT = "a result file; its question is not known"  # the end of its value
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class BundledRun:
    """A run and what else a bundle has of it."""

    run: StoredRun
    notes: RunNotes = field(default_factory=RunNotes)


def write_bundle(
    session: Session, slugs: Sequence[str], without_notes: Collection[str] = ()
) -> bytes:
    """A zip of these runs; the same runs give the same bytes.

    `without_notes`: those whose notes stay here.

    Raises:
        StorageError: none or too many chosen, one is missing, not over or too big.
    """
    count = len(set(slugs))
    if not 1 <= count <= MAX_RUNS:
        raise StorageError(f"A bundle takes 1 to {MAX_RUNS} runs; got {count}.")
    bundles = write_bundles(session, slugs, without_notes=without_notes)
    written, data = next(bundles)
    if written < count:
        raise _too_big([*dict.fromkeys(slugs)][written])
    return data


def write_bundles(
    session: Session,
    slugs: Sequence[str],
    leave_out: Callable[[StorageError], None] | None = None,
    without_notes: Collection[str] = (),
) -> Iterator[tuple[int, bytes]]:
    """As many zips as these runs need, each with how many runs it has, in the order given.

    `leave_out`: gets the reason for each run that is spoilt, missing, not over or too big; without
    it that is an error.
    """
    writer = _Writer()
    try:
        for slug in dict.fromkeys(slugs):
            try:
                data = _run_data(session, slug, with_notes=slug not in without_notes)
            except StorageError as error:
                if leave_out is None:
                    raise
                leave_out(error)
                continue
            if not writer.has_room(data):
                yield writer.count, writer.finish()
                writer = _Writer()
            writer.add(slug, data)
        if writer.count:
            yield writer.count, writer.finish()
    finally:
        writer.finish()


class _Writer:
    """One zip as it grows."""

    def __init__(self) -> None:
        self.count = self._total = 0
        self._out = io.BytesIO()
        self._archive = zipfile.ZipFile(self._out, "w", zipfile.ZIP_DEFLATED)

    def has_room(self, data: bytes) -> bool:
        return self.count < MAX_RUNS and self._total + len(data) <= MAX_TOTAL_BYTES

    def add(self, slug: str, data: bytes) -> None:
        entry = zipfile.ZipInfo(entry_name(slug), _EPOCH)
        self._archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        self._total += len(data)
        self.count += 1

    def finish(self) -> bytes:
        self._archive.close()
        return self._out.getvalue()


def _run_data(session: Session, slug: str, *, with_notes: bool) -> bytes:
    run = repository.load_run(session, slug)
    if run.state not in END_STATES:
        raise StorageError(f"Run {slug} is not over; export it once it is.")
    values = run_json(run)
    if with_notes:
        values |= record_json(repository.load_notes(session, slug))
    data = json.dumps(values, allow_nan=False, default=datetime.isoformat).encode()
    if len(data) > MAX_RUN_BYTES:
        raise _too_big(slug)
    return data


def _too_big(slug: str) -> StorageError:
    return StorageError(
        f"Run {slug} is too big for this bundle. One run takes up to "
        f"{MAX_RUN_BYTES // 2**20} MiB of JSON, all together "
        f"{MAX_TOTAL_BYTES // 2**20} MiB; export fewer runs at a time."
    )


def entry_name(slug: str) -> str:
    """The only name under which a run may stand in a bundle."""
    return f"runs/{slug}.json"


def run_json(run: StoredRun) -> dict[str, Any]:
    """Everything that is stored of a run, as plain JSON values but for its times."""
    request = record_json(run.request) | {"own_indices": own_to_json(run.request.own_indices)}
    values = record_json(run, leave_out=("request", "result", "owner"))
    return values | {"request": request, "result": to_json(run.result)}
