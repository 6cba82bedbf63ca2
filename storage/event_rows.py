"""Queries that record the events of an active run. Take a Session, never commit."""

from dataclasses import asdict

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from ckv_core.errors import StorageError
from ckv_core.results.events import (
    FloorMeasured,
    FollowUpsAnswered,
    Generated,
    RunFinished,
    RunPrepared,
    VariantAnalysed,
    VariantFinished,
    VariantMeasured,
    VariantSelected,
)
from storage import mapping
from storage.codecs import EncodedArray
from storage.models import Array, Prompt, Run, Variant


def save_prepared(session: Session, run_id: int, event: RunPrepared) -> None:
    """Model, prompt and the variants, in place of any that were there."""
    model = asdict(event.model)
    session.execute(
        update(Run)
        .where(Run.id == run_id)
        .values(
            model=model | {"evictable_layers": list(event.model.evictable_layers)},
            model_name=event.model.name,
            device=event.model.device,
            dtype=event.model.dtype,
            prompt_tokens=event.prompt.tokens,
            environment=dict(event.environment),
            kind=event.kind,
            memory=dict(event.memory),
            floor=None,
        )
    )
    columns = mapping.prompt_columns(event.prompt)
    session.execute(update(Prompt).where(Prompt.run_id == run_id).values(columns))
    session.execute(delete(Variant).where(Variant.run_id == run_id))
    for position, variant in enumerate(event.variants):
        row = Variant(run_id=run_id, position=position, **mapping.variant_columns(variant))
        session.add(row)
        session.flush()
        _insert_arrays(session, row.id, mapping.variant_arrays(variant))


def save_selected(session: Session, run_id: int, event: VariantSelected) -> None:
    """Kept set, receipt and resolved parameters of one variant."""
    columns = mapping.receipt_columns(event.receipt) | {
        "params": dict(event.params),
        "timings_ms": dict(event.timings_ms),
    }
    variant_id = _update_variant(session, run_id, event.index, columns)
    _replace_arrays(session, variant_id, ("retained",), mapping.retained_arrays(event.retained))


def save_floor(session: Session, run_id: int, event: FloorMeasured) -> None:
    """What rounding alone does to the run's figures."""
    columns = {"floor": mapping.floor_json(event.floor)}
    session.execute(update(Run).where(Run.id == run_id).values(columns))


def save_measured(session: Session, run_id: int, event: VariantMeasured) -> None:
    """Perturbation of one variant."""
    columns = mapping.perturbation_columns(event.perturbation)
    variant_id = _update_variant(session, run_id, event.index, columns)
    names = ("head_l1", "base_head_l1", "layer_hidden_l1")
    _replace_arrays(session, variant_id, names, mapping.perturbation_arrays(event.perturbation))


def save_analysed(session: Session, run_id: int, event: VariantAnalysed) -> None:
    """More arrays of one variant, in place of those of the same names."""
    steps = event.forced_steps
    columns = {} if steps is None else mapping.forced_columns(steps)
    variant_id = _update_variant(session, run_id, event.index, columns)
    arrays = mapping.analysis_arrays(event.analysis)
    _replace_arrays(session, variant_id, tuple(arrays), arrays)


def save_follow_ups(session: Session, run_id: int, event: FollowUpsAnswered) -> None:
    """One variant's answers so far."""
    columns = mapping.follow_up_columns(event.follow_ups)
    _update_variant(session, run_id, event.index, columns)


def save_generated(session: Session, run_id: int, event: Generated) -> None:
    """Text and tokens so far of all variants."""
    parts = zip(event.texts, event.token_ids, event.token_texts, event.stopped, strict=True)
    for index, part in enumerate(parts):
        _update_variant(session, run_id, index, mapping.generation_columns(*part))


def save_finished_variant(session: Session, run_id: int, event: VariantFinished) -> None:
    """Figures of one variant that need its whole generation."""
    columns = {
        "agreement": event.agreement,
        "first_difference": event.first_difference,
        "answer_found": event.answer_found,
        "answer_scores": dict(event.answer_scores),
    }
    variant_id = _update_variant(session, run_id, event.index, columns)
    arrays = mapping.held_arrays(event.held)
    _replace_arrays(session, variant_id, ("held", "evicted"), arrays)


def save_run_finished(session: Session, run_id: int, event: RunFinished) -> None:
    """The result is whole; the state changes only with `end_run`."""
    estimated = session.scalar(select(Run.memory).where(Run.id == run_id)) or {}
    values = {
        "timings_ms": dict(event.timings_ms),
        "complete": True,
        "memory": {**estimated, **event.memory},
    }
    session.execute(update(Run).where(Run.id == run_id).values(values))


def _update_variant(session: Session, run_id: int, index: int, columns: mapping.Columns) -> int:
    variant_id = session.scalar(
        select(Variant.id).where(Variant.run_id == run_id, Variant.position == index)
    )
    if variant_id is None:
        raise StorageError(f"An event names variant {index}, which this run does not have.")
    if columns:
        session.execute(update(Variant).where(Variant.id == variant_id).values(columns))
    return variant_id


def _replace_arrays(
    session: Session, variant_id: int, names: tuple[str, ...], arrays: dict[str, EncodedArray]
) -> None:
    session.execute(delete(Array).where(Array.variant_id == variant_id, Array.name.in_(names)))
    _insert_arrays(session, variant_id, arrays)


def _insert_arrays(session: Session, variant_id: int, arrays: dict[str, EncodedArray]) -> None:
    rows = [{"variant_id": variant_id, "name": n, **asdict(a)} for n, a in arrays.items()]
    if rows:
        session.execute(insert(Array), rows)
