"""Queries that record the events of an active run. Take a Session, never commit."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.results.codec import plain
from ckv_core.results.events import (
    FloorMeasured,
    RunEvent,
    RunFinished,
    RunPrepared,
    variant_changes,
)
from storage import mapping
from storage.models import Array, Prompt, Run, Variant

Members = Mapping[str, Any]


def save(session: Session, run_id: int, event: RunEvent) -> None:
    """What an event tells; the state of a run changes only with `end_run`.

    Raises:
        StorageError: it names a variant that the run lacks.
    """
    match event:
        case RunPrepared():
            _save_prepared(session, run_id, event)
        case FloorMeasured():
            _update_run(session, run_id, {"floor": plain(event.floor)})
        case RunFinished():
            estimated = session.scalar(select(Run.memory).where(Run.id == run_id)) or {}
            memory = {**estimated, **event.memory}
            done = {"timings_ms": plain(event.timings_ms), "complete": True, "memory": memory}
            _update_run(session, run_id, done)
        case _:
            _save_changes(session, run_id, dict(variant_changes(event)))


def _save_prepared(session: Session, run_id: int, event: RunPrepared) -> None:
    """Model, prompt and the variants, in place of any that were there."""
    columns = {
        "model": plain(event.model),
        "model_name": event.model.name,
        "device": event.model.device,
        "dtype": event.model.dtype,
        "prompt_tokens": event.prompt.tokens,
        "environment": dict(event.environment),
        "kind": event.kind,
        "memory": dict(event.memory),
        "floor": None,
    }
    _update_run(session, run_id, columns)
    prompt = mapping.prompt_columns(event.prompt)
    session.execute(update(Prompt).where(Prompt.run_id == run_id).values(prompt))
    session.execute(delete(Variant).where(Variant.run_id == run_id))
    changes = [
        {item.name: getattr(variant, item.name) for item in fields(variant)}
        for variant in event.variants
    ]
    documents = map(mapping.variant_document, changes)
    rows = [
        {"run_id": run_id, "position": index, **mapping.variant_columns(document)}
        for index, document in enumerate(documents)
    ]
    inserted = insert(Variant).returning(Variant.id, sort_by_parameter_order=True)
    ids = session.scalars(inserted, rows) if rows else ()
    _replace_arrays(session, dict(zip(ids, changes, strict=True)))


def _save_changes(session: Session, run_id: int, changes: Mapping[int, Members]) -> None:
    known = select(Variant.position, Variant.id, Variant.document).where(
        Variant.run_id == run_id, Variant.position.in_(changes)
    )
    rows = {row.position: row for row in session.execute(known)}
    for index in changes.keys() - rows.keys():
        raise StorageError(f"An event names variant {index}, which this run does not have.")
    updates = [
        {"id": rows[index].id, **mapping.variant_columns({**rows[index].document, **document})}
        for index, members in changes.items()
        if (document := mapping.variant_document(members))
    ]
    if updates:
        session.execute(update(Variant), updates)
    _replace_arrays(session, {rows[index].id: members for index, members in changes.items()})


def _replace_arrays(session: Session, changes: Mapping[int, Members]) -> None:
    """Write arrays by the keys of their variants, of all of which an event tells the same."""
    arrays = {key: mapping.variant_arrays(members) for key, members in changes.items()}
    names = {name for of_variant in arrays.values() for name in of_variant}
    session.execute(delete(Array).where(Array.variant_id.in_(arrays), Array.name.in_(names)))
    rows = [
        {"variant_id": key, "name": name, **asdict(array)}
        for key, of_variant in arrays.items()
        for name, array in of_variant.items()
        if array
    ]
    if rows:
        session.execute(insert(Array), rows)


def _update_run(session: Session, run_id: int, columns: mapping.Columns) -> None:
    session.execute(update(Run).where(Run.id == run_id).values(columns))
