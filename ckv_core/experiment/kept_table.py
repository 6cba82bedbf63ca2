"""The table of kept caches, on the page and in the terminal. No torch."""

from collections.abc import Callable, Sequence

from ckv_core.base.memory_line import human_bytes
from ckv_core.experiment.table import Cell, Column, Plain, Table, text_column
from ckv_core.records.kept_folder import KeptEntry
from ckv_core.records.kept_record import KeptRecord

_NOTE = (
    "A file has the kept keys and values, their positions, the receipt, and the whole context as "
    "text: anyone who gets the file can read it."
)
_EMPTY = (
    "No cache is kept yet. Open a finished run of the scenario context-only; below its results is "
    "Keep a cache. Or use the command line: python -m ckv_core cache keep."
)


def kept_table(entries: Sequence[KeptEntry]) -> Table[KeptEntry]:
    """A row per cache; of a spoilt file its name alone."""

    def of(read: Callable[[KeptRecord], Cell | Plain]) -> Callable[[KeptEntry], Cell | Plain]:
        return lambda entry: read(entry.record) if entry.record else None

    columns: list[Column[KeptEntry]] = [
        text_column("name", "Name", lambda entry: entry.name),
        text_column(
            "variant",
            "Variant",
            lambda entry: entry.record.spec if entry.record else "cannot be read; delete it",
            unit="SPEC",
        ),
        Column("model", "Model", of(lambda kept: kept.model.name), is_text=True),
        Column(
            "budget",
            "Budget",
            of(lambda kept: kept.receipt.budget_tokens),
            unit="tokens a KV head",
            form=",",
        ),
        Column(
            "context", "Context", of(lambda kept: kept.compressed_tokens), unit="tokens", form=","
        ),
        Column("entries", "Kept entries", of(lambda kept: kept.receipt.retained_entries), form=","),
        Column(
            "memory",
            "In memory",
            of(lambda kept: _bytes(kept.receipt.cache_bytes)),
            unit="evictable layers",
        ),
        Column("full", "Full cache", of(lambda kept: _bytes(kept.receipt.full_cache_bytes))),
        Column("file", "File", lambda entry: _bytes(entry.size) if entry.record else None),
        Column(
            "made",
            "Made",
            of(lambda kept: kept.created[:16].replace("T", " ")),
            unit="UTC",
            is_text=True,
        ),
    ]
    return Table(
        caption="Kept caches",
        columns=columns,
        items=entries,
        file="caches.csv",
        note=_NOTE,
        empty=_EMPTY,
    )


def _bytes(value: int) -> Cell:
    return Cell(human_bytes(value), value)
