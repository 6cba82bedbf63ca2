"""Kept caches and what was asked of them, as the components show it. No Gradio."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from ckv_core.results.kept_folder import KeptEntry
from ckv_core.runtime.memory_line import human_bytes
from ui.caches.jobs import job_sentence
from ui.services.caches import CacheJob
from ui.tables.data_table import Cells, column, count, data_table, table_row, text_column

COLUMNS = (
    text_column("name", "Name"),
    text_column("variant", "Variant", "SPEC"),
    text_column("model", "Model"),
    column("budget", "Budget", "tokens a KV head"),
    column("context", "Context", "tokens"),
    column("entries", "Kept entries"),
    column("memory", "In memory", "evictable layers"),
    column("full", "Full cache"),
    column("file", "File"),
    text_column("made", "Made", "UTC"),
    text_column("take", "Download", "safetensors"),
)
NOTE = (
    "A file has the kept keys and values, their positions, the receipt, and the whole context as "
    "text: whoever gets the file can read it."
)
EMPTY = (
    "No cache is kept yet. Open a finished run of the scenario context-only; below its results is "
    "Keep a cache. Or use the command line: python -m ckv_core cache keep."
)


def caches_table(entries: Sequence[KeptEntry]) -> dict[str, Any]:
    rows = [table_row(_cells(entry)) for entry in entries]
    return data_table("Kept caches", COLUMNS, rows, file="caches.csv", note=NOTE, empty=EMPTY)


def _cells(entry: KeptEntry) -> Cells:
    record = entry.record
    if record is None:
        return {"name": {"text": entry.name}, "variant": {"text": "cannot be read; delete it"}}
    receipt = record.receipt
    return {
        "name": {"text": entry.name},
        "variant": {"text": record.spec},
        "model": {"text": record.model.name},
        "budget": count(receipt.budget_tokens),
        "context": count(record.compressed_tokens),
        "entries": count(receipt.retained_entries),
        "memory": _size(receipt.cache_bytes),
        "full": _size(receipt.full_cache_bytes),
        "file": _size(entry.size),
        "made": {"text": record.created[:16].replace("T", " ")},
        "take": {"text": "Download", "href": f"/caches/file?name={quote(entry.name)}"},
    }


def _size(value: int) -> dict[str, Any]:
    return {"text": human_bytes(value), "value": value}


def answers_value(jobs: Sequence[CacheJob]) -> dict[str, Any]:
    return {
        "rows": [
            {
                "question": job.question,
                "text": job.text,
                "told": job_sentence(job),
                "tone": "error" if job.state == "failed" else "",
            }
            for job in jobs
        ]
    }
