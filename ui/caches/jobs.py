"""Kept caches as pages show them, and jobs on them as pages follow them."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import quote

import gradio as gr

from ckv_core.base.memory_line import human_bytes
from ckv_core.errors import CkvError
from ckv_core.records.kept_folder import KeptEntry
from ui.accounts.turns import in_turn
from ui.services.caches import CacheJob, Caches
from ui.tables.data_table import Cells, column, count, data_table, table_row, text_column


def job_sentence(job: CacheJob) -> str:
    """Where a job is, or how it ended; empty once it is done."""
    if job.state == "queued":
        return "Waits for its turn."
    if job.state == "failed":
        return job.reason
    if job.state == "cancelled":
        return "Cancelled."
    if job.progress is None:
        return ""
    share = "" if job.progress.fraction is None else f" {job.progress.fraction:.0%}"
    return f"{job.progress.stage.capitalize()}{share}: {job.progress.detail}"


async def follow_job(
    caches: Caches, job_id: object, shown: Callable[[CacheJob], dict[str, Any]]
) -> AsyncIterator[list[Any]]:
    """Updates of what is shown, of the button that started the job, and of Cancel, to its end.

    Nothing changes for a job that was refused; one that nobody remembers is over.
    """
    if not job_id:
        yield [gr.skip(), gr.skip(), gr.skip()]
        return
    try:
        async for job in caches.watch(job_id):
            goes_on = not job.is_final
            buttons = [gr.update(interactive=not goes_on), gr.update(interactive=goes_on)]
            yield [await in_turn(shown, job), *buttons]
    except CkvError:
        yield [gr.skip(), gr.update(interactive=True), gr.update(interactive=False)]


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
    "text: anyone who gets the file can read it."
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
                "message": job_sentence(job),
                "tone": "error" if job.state == "failed" else "",
            }
            for job in jobs
        ]
    }
