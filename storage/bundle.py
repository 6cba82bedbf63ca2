"""Runs as one file to take along: writes a zip of a manifest and one JSON per run.

storage/bundle_reader.py reads it, storage/bundle_import.py stores it; docs/bundle.md describes it.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.own_indices_json import own_to_json
from ckv_core.result_json import to_json
from storage import mapping, repository
from storage.models import END_STATES, Run
from storage.records import Lineage, RunNotes, StoredRun

FORMAT = "criticalkv-lab-bundle"
VERSION = 1
MANIFEST = "manifest.json"
MAX_RUNS = 1000
MAX_RUN_BYTES = 64 * 2**20  # of one run's JSON
MAX_TOTAL_BYTES = 512 * 2**20
IMPORTED = "imported"  # key of a run's environment that says that it was not made here
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class BundledRun:
    """A run and what else a bundle tells of it.

    Attributes:
        lineage: its parent by the slug in the bundle.
        has_times: whether its times are its own; a result file has none.
    """

    run: StoredRun
    notes: RunNotes = field(default_factory=RunNotes)
    lineage: Lineage | None = None
    has_times: bool = True


def write_bundle(
    session: Session, slugs: Sequence[str], without_notes: Collection[str] = ()
) -> bytes:
    """A zip of these runs; the same runs give the same bytes.

    Args:
        session: to read from.
        slugs: of the runs.
        without_notes: those whose notes, tags and lineage are not for whoever asks.

    Raises:
        StorageError: none or too many asked for, one is missing, not over or too big.
    """
    if not 1 <= len(slugs) <= MAX_RUNS:
        raise StorageError(f"A bundle takes 1 to {MAX_RUNS} runs; got {len(slugs)}.")
    listed, total = [], 0
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for slug in dict.fromkeys(slugs):
            run = repository.load_run(session, slug)
            if run.state not in END_STATES:
                raise StorageError(f"Run {slug} is not over; export it once it is.")
            beside = {} if slug in without_notes else _beside(session, slug)
            data = json.dumps(run_json(run) | beside, allow_nan=False).encode()
            total += len(data)
            if len(data) > MAX_RUN_BYTES or total > MAX_TOTAL_BYTES:
                raise StorageError(
                    f"Run {slug} is too big for this bundle: one run takes up to "
                    f"{MAX_RUN_BYTES // 2**20} MiB of JSON, all together "
                    f"{MAX_TOTAL_BYTES // 2**20} MiB; export fewer runs at a time."
                )
            _add(archive, entry_name(slug), data)
            digest = hashlib.sha256(data).hexdigest()
            listed.append({"slug": slug, "sha256": digest, "bytes": len(data)})
        manifest = {"format": FORMAT, "version": VERSION, "runs": listed}
        _add(archive, MANIFEST, json.dumps(manifest).encode())
    return out.getvalue()


def entry_name(slug: str) -> str:
    """The only name under which a run may stand in a bundle."""
    return f"runs/{slug}.json"


def run_json(run: StoredRun) -> dict[str, Any]:
    """Everything that is stored of a run, as plain JSON values."""
    request = run.request
    texts = {name: getattr(request, name) for name in mapping.TEXT_FIELDS}
    return {
        "slug": run.slug,
        "title": run.title,
        "state": run.state,
        "reason": run.reason,
        "created_at": run.created_at.isoformat(),
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "request": mapping.request_json(request)
        | texts
        | {"own_indices": own_to_json(request.own_indices)},
        "result": to_json(run.result),
    }


def is_same_content(left: StoredRun, right: StoredRun) -> bool:
    """Whether two runs are one: asked, measured and ended alike, whatever their titles."""
    return _content(left) == _content(right)


def _content(run: StoredRun) -> dict[str, Any]:
    values = run_json(run)
    del values["title"], values["slug"]
    values["result"]["environment"].pop(IMPORTED, None)
    return values


def _beside(session: Session, slug: str) -> dict[str, Any]:
    """What is known of a run but no part of it."""
    notes = repository.load_notes(session, slug)
    parent, kind = session.execute(
        select(Run.parent_slug, Run.lineage).where(Run.slug == slug)
    ).one()
    return {
        "note": notes.note,
        "tags": list(notes.tags),
        "lineage": {"parent": parent, "kind": kind} if parent else None,
    }


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
