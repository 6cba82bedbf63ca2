"""The table of kept caches, on the page and in the terminal. No torch."""

from collections.abc import Callable, Sequence
from typing import Any

from ckv_core.base.memory_line import human_bytes
from ckv_core.experiment.table import Cell, Column, Plain, Table, text_column
from ckv_core.records.kept_caches import KeptEntry, KeptRecord

_NOTE = (
    "A file has the kept keys and values, their positions, the receipt, and the whole context as "
    "text. Anyone who gets the file can read it."
)
_EMPTY = (
    "No cache is kept yet. Run a comparison in the scenario context-only, and press Keep a cache "
    "below its result. On the command line: ckv cache keep."
)


def _of(
    key: str, label: str, read: Callable[[KeptRecord], Cell | Plain], **more: Any
) -> Column[KeptEntry]:
    """Empty where the file is spoilt."""
    return Column(
        key, label, lambda entry: read(entry.record) if entry.record else None, form=",", **more
    )


def _bytes(value: int) -> Cell:
    return Cell(human_bytes(value), value)


_COLUMNS: tuple[Column[KeptEntry], ...] = (
    text_column("name", "Name", lambda entry: entry.name),
    text_column(
        "variant",
        "Method",
        lambda entry: entry.record.spec if entry.record else "cannot be read; delete it",
        unit="SPEC",
    ),
    _of("model", "Model", lambda kept: kept.model.name, is_text=True),
    _of("budget", "Budget", lambda kept: kept.receipt.budget_tokens, unit="tokens a KV head"),
    _of("context", "Context", lambda kept: kept.compressed_tokens, unit="tokens"),
    _of("entries", "Kept entries", lambda kept: kept.receipt.retained_entries),
    _of("memory", "In memory", lambda k: _bytes(k.receipt.cache_bytes), unit="evictable layers"),
    _of("full", "Full cache", lambda kept: _bytes(kept.receipt.full_cache_bytes)),
    Column("file", "File", lambda entry: _bytes(entry.size) if entry.record else None),
    _of("made", "Made", lambda k: k.created[:16].replace("T", " "), unit="UTC", is_text=True),
)


def kept_table(entries: Sequence[KeptEntry]) -> Table[KeptEntry]:
    """A row per cache; of a spoilt file its name alone."""
    return Table(
        caption="Kept caches",
        columns=_COLUMNS,
        items=entries,
        file="caches.csv",
        note=_NOTE,
        empty=_EMPTY,
    )
